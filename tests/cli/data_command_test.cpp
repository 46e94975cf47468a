// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "cli/commands.h"
#include "core/temporary_folder.h"

namespace fmmformer::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

struct Answer {
  int code = 0;
  std::string text;  // printed, or the error
};

Answer data(std::vector<std::string> arguments) {
  testing::internal::CaptureStdout();
  Answer outcome;
  std::string error;
  try {
    outcome.code = run_data({"fmmformer data", std::move(arguments)});
  } catch (const CommandError& problem) {
    outcome.code = problem.code();
    error = problem.what();
  }
  outcome.text = testing::internal::GetCapturedStdout() + error;
  return outcome;
}

/// Two examples of listops and one picture of pathfinder, imported.
class DataCommand : public testing::Test {
 protected:
  DataCommand() {
    std::ofstream(folder_ / "basic_val.tsv") << "Source\tTarget\n[SM 5 6 ]\t1\n[MAX 2 9 ]\t9\n";
    std::ofstream(folder_ / "x.bin") << '\1' << std::string(512, '\0') << std::string(512, '\xFF');
    listops_ = import({"listops", folder_.path()}, "listops");
    pathfinder_ = import({"pathfinder", "--test", folder_ / "x.bin"}, "pathfinder");
  }

  Answer import(std::vector<std::string> arguments, const std::string& task) const {
    arguments.insert(arguments.begin(), "import");
    arguments.insert(arguments.end(), {"--out", folder_ / ("data/" + task)});
    return data(std::move(arguments));
  }

  TemporaryFolder folder_;
  Answer listops_, pathfinder_;
};

TEST_F(DataCommand, ImportSaysWhatItReadAndWhatItWrote) {
  EXPECT_EQ(listops_.code, kDone);
  EXPECT_THAT(listops_.text,
              AllOf(HasSubstr("valid from"), HasSubstr("listops/valid.fmmdata: 2 examples")));
  EXPECT_THAT(pathfinder_.text, HasSubstr("pathfinder/test.fmmdata: 1 examples"));
}

TEST_F(DataCommand, MakeSaysWhatItPutsInPlaceOfAnother) {
  const auto make = [&](const char* split) {
    return data({"make", "listops", split, "1", "--out", folder_ / "data/listops"}).text;
  };
  EXPECT_THAT(make("--test"), Not(HasSubstr("in place of")));
  EXPECT_THAT(make("--valid"), HasSubstr(", in place of those that were there\n"));
}

TEST_F(DataCommand, ListCountsWhatIsThere) {
  const Answer list = data({"list", "--root", folder_ / "data"});
  EXPECT_EQ(list.code, kDone);
  EXPECT_THAT(list.text, AllOf(HasSubstr("train -  valid 2  test -"), HasSubstr("basic_"),
                               HasSubstr("train -  valid -  test 1")));
  EXPECT_THAT(data({"list", "--json", "--root", folder_ / "data"}).text, HasSubstr("\"valid\": 2"));
}

TEST_F(DataCommand, CheckPassesGoodFilesAndFailsForADamagedOne) {
  const std::string listops = folder_ / "data/listops";
  const Answer good = data({"check", "listops", "--data", listops});
  EXPECT_EQ(good.code, kDone);
  EXPECT_THAT(good.text, HasSubstr("good, 2 examples"));
  std::fstream(listops + "/valid.fmmdata", std::ios::in | std::ios::out).seekp(-1, std::ios::end)
      << 'x';
  const Answer bad = data({"check", "listops", "--data", listops});
  EXPECT_EQ(bad.code, kFailed);
  EXPECT_THAT(bad.text, AllOf(HasSubstr("BAD"), HasSubstr("import it again")));
}

TEST_F(DataCommand, ShowPrintsAnExampleForAPerson) {
  const Answer words = data(
      {"show", "listops", "--split", "valid", "--index", "1", "--data", folder_ / "data/listops"});
  EXPECT_THAT(words.text, AllOf(HasSubstr("example 1 of 2, label 9"), HasSubstr("[MAX 2 9 ]\n")));
  const std::vector<std::string> picture = {"show", "pathfinder", "--split",
                                            "test", "--data",     folder_ / "data/pathfinder"};
  EXPECT_THAT(data(picture).text, AllOf(HasSubstr("joined"), HasSubstr(std::string(64, '@'))));
}

TEST_F(DataCommand, ShowDrawsAPicture) {
  const std::string png = folder_ / "x.png";
  const Answer drawn = data({"show", "pathfinder", "--split", "test", "--data",
                             folder_ / "data/pathfinder", "--out", png});
  EXPECT_EQ(drawn.code, kDone);
  std::string begin(8, '\0');
  std::ifstream(png, std::ios::binary).read(begin.data(), 8);
  EXPECT_EQ(begin, "\x89PNG\r\n\x1A\n");
}

/// A text of twelve lines, imported as words and as bytes.
class CorpusCommand : public testing::Test {
 protected:
  CorpusCommand() {
    std::ofstream train(folder_ / "my_train.txt"), valid(folder_ / "my_valid.txt");
    for (int line = 0; line < 12; ++line) train << "the cat sat on <unk> caf\xC3\xA9\n";
    valid << "the dog sat\n";
    train.close(), valid.close();
    words_ = data({"import", "wikitext-2", folder_.path(), "--out", words_folder_});
    bytes_ = data({"import", "wikitext", "--train", folder_ / "my_train.txt", "--level", "byte",
                   "--out", bytes_folder_});
  }

  TemporaryFolder folder_;
  std::string words_folder_ = folder_ / "data/wikitext-2",
              bytes_folder_ = folder_ / "data/wikitext";
  Answer words_, bytes_;
};

TEST_F(CorpusCommand, ImportSaysWhatItReadAndWhatItWrote) {
  EXPECT_EQ(words_.code, kDone);
  EXPECT_THAT(words_.text,
              AllOf(HasSubstr("train from"), HasSubstr("wikitext-2/vocabulary.txt: 7 words"),
                    HasSubstr("train.fmmtokens: 84 tokens\n"),
                    HasSubstr("valid.fmmtokens: 4 tokens, 1 of them not in the vocabulary")));
  EXPECT_EQ(bytes_.code, kDone);
  EXPECT_THAT(bytes_.text, AllOf(HasSubstr("256 bytes"), HasSubstr("train.fmmtokens: 270 tokens"),
                                 HasSubstr("valid.fmmtokens: 54 tokens")));
}

TEST_F(CorpusCommand, ListCountsTokens) {
  const Answer list = data({"list", "--root", folder_ / "data"});
  EXPECT_THAT(list.text, AllOf(HasSubstr("(vocabulary: 7)"), HasSubstr("train 84  valid 4  test -"),
                               HasSubstr("(vocabulary: 256)"), HasSubstr("(vocabulary: -)")));
  EXPECT_THAT(data({"list", "--json", "--root", folder_ / "data"}).text,
              HasSubstr("\"vocabulary\": 7"));
}

TEST_F(CorpusCommand, CheckPassesGoodFilesAndFailsForADamagedOneOrAnotherVocabulary) {
  const std::vector<std::string> check = {"check", "wikitext-2", "--data", words_folder_};
  const Answer good = data(check);
  EXPECT_EQ(good.code, kDone);
  EXPECT_THAT(good.text, AllOf(HasSubstr("good, 7 words"), HasSubstr("good, 84 tokens")));
  std::fstream(words_folder_ + "/valid.fmmtokens", std::ios::in | std::ios::out)
          .seekp(-1, std::ios::end)
      << '\1';
  const Answer bad = data(check);
  EXPECT_EQ(bad.code, kFailed);
  EXPECT_THAT(bad.text, AllOf(HasSubstr("BAD"), HasSubstr("checksum")));
  std::filesystem::copy_file(bytes_folder_ + "/vocabulary.txt", words_folder_ + "/vocabulary.txt",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(data(check).text, HasSubstr("another vocabulary"));
}

TEST_F(CorpusCommand, ShowPrintsTokensForAPerson) {
  const Answer words = data({"show", "wikitext-2", "--data", words_folder_});
  EXPECT_THAT(words.text, AllOf(HasSubstr("tokens 0..83 of 84, vocabulary of 7 words"),
                                HasSubstr("\nthe cat sat on <unk> caf\xC3\xA9 <eos>\nthe cat")));
  const Answer bytes = data({"show", "wikitext", "--data", bytes_folder_, "--index", "1"});
  EXPECT_THAT(bytes.text, AllOf(HasSubstr("tokens 256..269 of 270"), HasSubstr("f\xC3\xA9\n")));
}

TEST_F(CorpusCommand, MistakesAreNamedAndEndWithTwo) {
  const std::pair<std::vector<std::string>, const char*> mistakes[] = {
      {{"import", "wikitext-3", "."}, "did you mean wikitext-2"},
      {{"import", "wikitext"}, "either a folder or files"},
      {{"import", "wikitext", "/no/such/folder"}, "/no/such/folder"},
      {{"import", "wikitext", folder_.path(), "--level", "letter"}, "word, byte"},
      {{"import", "wikitext", folder_.path(), "--documents", "x"}, "--documents is for retrieval"},
      {{"import", "listops", folder_.path(), "--level", "byte"}, "--level and --min-count are for"},
      {{"import", "wikitext", folder_.path(), "--min-count", "0"}, "--min-count"},
      {{"show", "wikitext-2", "--data", words_folder_, "--index", "1"}, "0..0"},
      {{"show", "wikitext-2", "--data", words_folder_, "--split", "test"}, "test.fmmtokens"},
      {{"show", "wikitext-2", "--data", words_folder_, "--out", "x.png"}, "--out draws pictures"},
      {{"check", "wikitext-103", "--data", "/no/such/folder"}, "no data files"},
      {{"make", "wikitext-2", "--count", "5"}, "cannot be made"},
  };
  for (const auto& [arguments, said] : mistakes) {
    const Answer outcome = data(arguments);
    EXPECT_THAT(outcome.text, HasSubstr(said));
    EXPECT_EQ(outcome.code, kWrongUse) << outcome.text;
  }
}

TEST_F(DataCommand, MistakesAreNamedAndEndWithTwo) {
  const std::string listops = folder_ / "data/listops";
  const std::pair<std::vector<std::string>, const char*> mistakes[] = {
      {{"imprt"}, "did you mean import"},
      {{"import", "listop", "."}, "did you mean listops"},
      {{"import", "copy", "."}, "there is for: listops"},
      {{"import", "listops"}, "either a folder or files"},
      {{"import", "listops", "/no/such/folder"}, "/no/such/folder"},
      {{"import", "listops", "--train", folder_ / "x.bin", "--out", folder_ / "o"}, "x.bin:1: "},
      {{"show", "listops", "--data", listops}, "fmmformer data import listops"},
      {{"show", "listops", "--split", "dev", "--data", listops}, "train, valid, test"},
      {{"show", "listops", "--split", "valid", "--index", "2", "--data", listops}, "0..1"},
      {{"show", "listops", "--out", "x.png", "--data", listops}, "--out draws pictures"},
      {{"check", "text", "--data", "/no/such/folder"}, "no data files"},
      {{"check", "--data", listops}, "name it"},
  };
  for (const auto& [arguments, said] : mistakes) {
    const Answer outcome = data(arguments);
    EXPECT_THAT(outcome.text, HasSubstr(said));
    EXPECT_EQ(outcome.code, kWrongUse) << outcome.text;
  }
}

TEST_F(DataCommand, HelpHasAnExampleEverywhere) {
  for (const char* command : {"list", "import", "check", "show"}) {
    const Answer help = data({command, "--help"});
    EXPECT_EQ(help.code, kDone);
    EXPECT_THAT(help.text, HasSubstr("Example"));
  }
}

}  // namespace
}  // namespace fmmformer::cli
