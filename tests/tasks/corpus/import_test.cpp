// SPDX-License-Identifier: Apache-2.0
#include "tasks/corpus/import.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/temporary_folder.h"
#include "tasks/corpus/token_file.h"
#include "tasks/data_files.h"

namespace fmmformer::tasks {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<int64_t> tokens_of(const fs::path& folder, Split split) {
  const TokenFile file(folder, split, Vocabulary::read(folder));
  file.check();
  std::vector<int64_t> tokens(static_cast<size_t>(file.tokens()));
  file.read(0, tokens);
  return tokens;
}

std::vector<std::string> words_in(const fs::path& folder) {
  const Vocabulary vocabulary = Vocabulary::read(folder);
  return {vocabulary.words().begin(), vocabulary.words().end()};
}

/// A folder of texts, and one for what is imported.
class CorpusImport : public testing::Test {
 protected:
  ImportedCorpus import(const ImportSources& sources, const CorpusOptions& options = {}) const {
    return import_corpus(sources, options, out_);
  }
  fs::path text(const std::string& name, std::string_view contents) const {
    write_file(folder_ / name, contents);
    return folder_ / name;
  }
  std::string error_in(const ImportSources& sources, const CorpusOptions& options = {}) const {
    return error_of([&] { import(sources, options); });
  }

  TemporaryFolder folder_;
  fs::path out_ = folder_ / "out";
};

TEST_F(CorpusImport, WordsAreNumberedByFallingCountAndTiesAsFirstSeen) {
  const fs::path train = text("a.txt", "b c a\nc a b z\n\n c Z y");
  const ImportedCorpus corpus = import({.train = {train}, .valid = {train}});
  // c 3 times; b and a twice, b first; z, Z and y once
  EXPECT_THAT(words_in(out_), ElementsAre("<eos>", "c", "b", "a", "z", "Z", "y"));
  EXPECT_THAT(tokens_of(out_, Split::kTrain),
              ElementsAre(2, 1, 3, 0, 1, 3, 2, 4, 0, 0, 1, 5, 6, 0));
  EXPECT_EQ(corpus.vocabulary, 7);
  ASSERT_EQ(corpus.texts.size(), 2U);
  EXPECT_EQ(corpus.texts[0].tokens, 14);
  EXPECT_EQ(corpus.texts[0].unknown, 0);
}

TEST_F(CorpusImport, EveryLineEndsWithEosAndEosIsNotCounted) {
  const fs::path train = text("a.txt", "\n\n\na b b\n\n");
  import({.train = {train}, .valid = { train }});
  EXPECT_THAT(words_in(out_), ElementsAre("<eos>", "b", "a"));
  EXPECT_THAT(tokens_of(out_, Split::kTrain), ElementsAre(0, 0, 0, 2, 1, 1, 0, 0));
}

TEST_F(CorpusImport, TheWordEosInATextIsTheEndOfALine) {
  const fs::path train = text("a.txt", "a <eos> <eos> b\n");
  import({.train = {train}, .valid = { train }});
  EXPECT_THAT(words_in(out_), ElementsAre("<eos>", "a", "b"));
  EXPECT_THAT(tokens_of(out_, Split::kTrain), ElementsAre(1, 0, 0, 2, 0));
}

TEST_F(CorpusImport, UnkIsAnOrdinaryWordAndUnknownOnesAreReadAsIt) {
  const fs::path train = text("a.txt", "a a a <unk> b <unk>\n");
  const ImportedCorpus corpus =
      import({.train = {train}, .valid = {text("v.txt", "a new b newer new\n")}});
  EXPECT_THAT(words_in(out_), ElementsAre("<eos>", "a", "<unk>", "b"));
  EXPECT_THAT(tokens_of(out_, Split::kValid), ElementsAre(1, 2, 3, 2, 2, 0));
  EXPECT_EQ(corpus.texts[1].unknown, 3);
}

TEST_F(CorpusImport, UnknownWordsWithoutUnkAreAnErrorThatNamesOne) {
  const fs::path train = text("a.txt", "a b\n");
  EXPECT_THAT(error_in({.train = {train}, .valid = {text("v.txt", "a n\x1Bw b newer\n")}}),
              AllOf(HasSubstr("the valid text has 2 words"), HasSubstr("'n\\x1bw'"),
                    HasSubstr("--min-count 2"), HasSubstr("--level byte")));
  EXPECT_FALSE(fs::exists(out_));
}

TEST_F(CorpusImport, RareWordsBecomeUnkWhenToldSo) {
  const fs::path train = text("a.txt", "x a a b y b z a\n");
  const ImportedCorpus corpus = import({.train = {train}, .valid = {text("v.txt", "a new z\n")}},
                                       {.level = {}, .min_count = 2});
  // a and the three rare words: both 3 times, but <unk> was never seen, so comes after
  EXPECT_THAT(words_in(out_), ElementsAre("<eos>", "a", "<unk>", "b"));
  EXPECT_THAT(tokens_of(out_, Split::kTrain), ElementsAre(2, 1, 1, 3, 2, 3, 2, 1, 0));
  EXPECT_THAT(tokens_of(out_, Split::kValid), ElementsAre(1, 2, 2, 0));
  EXPECT_EQ(corpus.texts[0].unknown, 3);
  EXPECT_EQ(corpus.texts[1].unknown, 2);
}

TEST_F(CorpusImport, PackedFilesAndSeveralOfASplitAreOneText) {
  const fs::path first = text("a.txt.xz", packed_xz("a b\n"));
  const fs::path second = text("b.txt.gz", packed_gz("b\n"));
  import({.train = {first, second}, .valid = { first }});
  EXPECT_THAT(tokens_of(out_, Split::kTrain), ElementsAre(2, 1, 0, 1, 0));
}

TEST_F(CorpusImport, BytesAreTakenAsTheyStand) {
  const std::string bytes("caf\xC3\xA9\r\n\0\xFF", 9);
  const fs::path train = text("a.txt", bytes);
  const ImportedCorpus corpus =
      import({.train = {train}, .valid = {train}}, {.level = TextLevel::kByte, .min_count = 1});
  EXPECT_EQ(corpus.vocabulary, 256);
  EXPECT_THAT(words_in(out_), IsEmpty());
  const std::vector<int> expected = bytes_of(bytes);
  EXPECT_THAT(tokens_of(out_, Split::kTrain), testing::ElementsAreArray(expected));
}

TEST_F(CorpusImport, TheLastTenthOfTheLinesIsTheValidSplitWhereThereIsNone) {
  std::string lines;
  for (int i = 0; i < 100; ++i) lines += "w\n";
  const ImportedCorpus words = import({.train = {text("a.txt", lines)}});
  EXPECT_EQ(words.texts[0].tokens, 180);
  EXPECT_EQ(words.texts[1].tokens, 20);
  EXPECT_FALSE(fs::exists(out_ / "test.fmmtokens"));
  import({.train = { text("b.txt", lines) }}, {.level = TextLevel::kByte, .min_count = 1});
  EXPECT_EQ(tokens_of(out_, Split::kValid).size(), 20U);
  EXPECT_EQ(tokens_of(out_, Split::kTrain).back(), '\n');
}

TEST_F(CorpusImport, WordsOfTheValidPartAreNoPartOfTheVocabulary) {
  std::string lines = "<unk>\n";
  for (int i = 0; i < 50; ++i) lines += "w\n";
  const ImportedCorpus corpus = import({.train = {text("a.txt", lines + "a a a a\n")}});
  EXPECT_THAT(words_in(out_), ElementsAre("<eos>", "w", "<unk>"));
  EXPECT_EQ(corpus.texts[1].unknown, 4);
}

TEST_F(CorpusImport, ATextOfOneLineIsCutInsideIt) {
  import({.train =
          { text("a.txt", std::string(100, 'x')) }},
         {.level = TextLevel::kByte, .min_count = 1});
  EXPECT_EQ(tokens_of(out_, Split::kTrain).size(), 90U);
  EXPECT_EQ(tokens_of(out_, Split::kValid).size(), 10U);
}

TEST_F(CorpusImport, ALaterTestTextIsReadWithTheVocabularyThatIsThere) {
  const fs::path train = text("a.txt", "a b <unk> b\n");
  import({.train = {train}, .valid = { train }});
  const std::string before = read_file(out_ / "vocabulary.txt");
  const ImportedCorpus corpus = import({.test = {text("t.txt", "new b\n")}});
  EXPECT_THAT(tokens_of(out_, Split::kTest), ElementsAre(3, 1, 0));
  EXPECT_EQ(corpus.texts[0].unknown, 1);
  EXPECT_EQ(read_file(out_ / "vocabulary.txt"), before);
  EXPECT_THAT(error_in({.test = {train}}, {.level = TextLevel::kByte, .min_count = 1}),
              HasSubstr("is of the level word"));
  EXPECT_THAT(error_of([&] { import_corpus({.test = {train}}, {}, folder_ / "new"); }),
              AllOf(HasSubstr("no train text"), HasSubstr("--out")));
}

TEST_F(CorpusImport, ASplitOfAnEarlierVocabularyIsNotTakenForOneOfTheNew) {
  const fs::path one = text("a.txt", "a b\n"), other = text("b.txt", "b b a\n");
  import({.train = {one}, .valid = {one}, .test = { one }});
  import({.train = {other}, .valid = { other }});
  EXPECT_THAT(error_of([&] { tokens_of(out_, Split::kTest); }), HasSubstr("another vocabulary"));
}

TEST_F(CorpusImport, IsTheSameOnEveryRunToTheLastByte) {
  const fs::path train = text("a.txt", "d c b a\na b\n");
  for (const char* out : {"1", "2"}) {
    import_corpus({.train = {train}, .valid = {train}}, {}, folder_ / out);
  }
  for (const char* file : {"vocabulary.txt", "train.fmmtokens", "valid.fmmtokens"}) {
    EXPECT_EQ(read_file(folder_ / "1" / file), read_file(folder_ / "2" / file));
  }
}

TEST_F(CorpusImport, BadTextsAreErrorsThatLeaveTheFolderAsItWas) {
  const fs::path good = text("a.txt", "a b\n");
  import({.train = {good}, .valid = { good }});
  const std::string before = read_file(out_ / "train.fmmtokens");
  std::string broken = packed_xz("a b\n");
  broken[broken.size() / 2] = static_cast<char>(broken[broken.size() / 2] ^ 0x55);
  const auto as_valid = [&](const std::string& name, std::string_view contents) {
    return error_in({.train = {text("b.txt", "b b\n")}, .valid = {text(name, contents)}});
  };
  EXPECT_THAT(as_valid("v.txt", ""),
              AllOf(HasSubstr("the valid text"), HasSubstr("v.txt' is empty")));
  EXPECT_THAT(as_valid("v.txt", "b\nb caf\xE9 b\n"),
              AllOf(HasSubstr("v.txt:2: byte 6 of the line is not UTF-8"), HasSubstr("iconv"),
                    HasSubstr("--level byte")));
  EXPECT_THAT(as_valid("v.txt.xz", broken),
              AllOf(HasSubstr("v.txt.xz"), HasSubstr("get the file")));
  EXPECT_THAT(as_valid("v.txt.xz", packed_xz("b b b\n").substr(0, 40)), HasSubstr("cut off"));
  EXPECT_THAT(error_in({.train = {text("e.txt", "\n \n")}, .valid = {good}}),
              HasSubstr("e.txt' is empty"));
  EXPECT_THAT(error_in({.train = {text("e.txt", "")}}), HasSubstr("e.txt' is empty"));
  EXPECT_THAT(error_in({.train = {text("s.txt", "a")}}), HasSubstr("too short to lend"));
  EXPECT_THAT(error_in({.train = {folder_ / "none.txt"}}), HasSubstr("none.txt"));
  EXPECT_THAT(error_in({.train = {good}}, {.level = TextLevel::kByte, .min_count = 2}),
              HasSubstr("--min-count is for words"));
  EXPECT_EQ(read_file(out_ / "train.fmmtokens"), before);
}

TEST_F(CorpusImport, FindsTextsByTheNamesThatTheyHave) {
  for (const char* name : {"wiki.train.tokens", "wiki.valid.tokens.xz", "my_test.txt.gz",
                           "PROVENANCE.md", "notes.txt", "train.tsv"}) {
    text(std::string("in/") + name, "");
  }
  const ImportSources sources = find_texts(folder_ / "in");
  ASSERT_EQ(sources.train.size(), 1U);
  ASSERT_EQ(sources.valid.size(), 1U);
  ASSERT_EQ(sources.test.size(), 1U);
  EXPECT_EQ(sources.train[0].filename(), "wiki.train.tokens");
  EXPECT_EQ(sources.valid[0].filename(), "wiki.valid.tokens.xz");
  EXPECT_EQ(sources.test[0].filename(), "my_test.txt.gz");
  text("in/wiki.train.tokens.xz", "");
  EXPECT_THAT(error_of([&] { find_texts(folder_ / "in"); }), HasSubstr("twice"));
  text("other/notes.txt", "");
  EXPECT_THAT(error_of([&] { find_texts(folder_ / "other"); }),
              AllOf(HasSubstr("has no texts"), HasSubstr("wiki.train.tokens")));
}

}  // namespace
}  // namespace fmmformer::tasks
