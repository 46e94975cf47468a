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

struct Outcome {
  int code = 0;
  std::string text;  // printed, or the error
};

Outcome data(std::vector<std::string> arguments) {
  testing::internal::CaptureStdout();
  Outcome outcome;
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

  Outcome import(std::vector<std::string> arguments, const std::string& task) const {
    arguments.insert(arguments.begin(), "import");
    arguments.insert(arguments.end(), {"--out", folder_ / ("data/" + task)});
    return data(std::move(arguments));
  }

  TemporaryFolder folder_;
  Outcome listops_, pathfinder_;
};

TEST_F(DataCommand, ImportSaysWhatItReadAndWhatItWrote) {
  EXPECT_EQ(listops_.code, kDone);
  EXPECT_THAT(listops_.text,
              AllOf(HasSubstr("valid from"), HasSubstr("listops/valid.fmmdata: 2 examples")));
  EXPECT_THAT(pathfinder_.text, HasSubstr("pathfinder/test.fmmdata: 1 examples"));
}

TEST_F(DataCommand, ListCountsWhatIsThere) {
  const Outcome list = data({"list", "--root", folder_ / "data"});
  EXPECT_EQ(list.code, kDone);
  EXPECT_THAT(list.text, AllOf(HasSubstr("train -  valid 2  test -"), HasSubstr("basic_"),
                               HasSubstr("train -  valid -  test 1")));
  EXPECT_THAT(data({"list", "--json", "--root", folder_ / "data"}).text, HasSubstr("\"valid\": 2"));
}

TEST_F(DataCommand, CheckPassesGoodFilesAndFailsForADamagedOne) {
  const std::string listops = folder_ / "data/listops";
  const Outcome good = data({"check", "listops", "--data", listops});
  EXPECT_EQ(good.code, kDone);
  EXPECT_THAT(good.text, HasSubstr("good, 2 examples"));
  std::fstream(listops + "/valid.fmmdata", std::ios::in | std::ios::out).seekp(-1, std::ios::end)
      << 'x';
  const Outcome bad = data({"check", "listops", "--data", listops});
  EXPECT_EQ(bad.code, kFailed);
  EXPECT_THAT(bad.text, AllOf(HasSubstr("BAD"), HasSubstr("import it again")));
}

TEST_F(DataCommand, ShowPrintsAnExampleForAPerson) {
  const Outcome words = data(
      {"show", "listops", "--split", "valid", "--index", "1", "--data", folder_ / "data/listops"});
  EXPECT_THAT(words.text, AllOf(HasSubstr("example 1 of 2, label 9"), HasSubstr("[MAX 2 9 ]\n")));
  const std::vector<std::string> picture = {"show", "pathfinder", "--split",
                                            "test", "--data",     folder_ / "data/pathfinder"};
  EXPECT_THAT(data(picture).text, AllOf(HasSubstr("joined"), HasSubstr(std::string(64, '@'))));
}

TEST_F(DataCommand, ShowDrawsAPicture) {
  const std::string png = folder_ / "x.png";
  const Outcome drawn = data({"show", "pathfinder", "--split", "test", "--data",
                              folder_ / "data/pathfinder", "--out", png});
  EXPECT_EQ(drawn.code, kDone);
  std::string begin(8, '\0');
  std::ifstream(png, std::ios::binary).read(begin.data(), 8);
  EXPECT_EQ(begin, "\x89PNG\r\n\x1A\n");
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
    const Outcome outcome = data(arguments);
    EXPECT_THAT(outcome.text, HasSubstr(said));
    EXPECT_EQ(outcome.code, kWrongUse) << outcome.text;
  }
}

TEST_F(DataCommand, HelpHasAnExampleEverywhere) {
  for (const char* command : {"list", "import", "check", "show"}) {
    const Outcome help = data({command, "--help"});
    EXPECT_EQ(help.code, kDone);
    EXPECT_THAT(help.text, HasSubstr("Example"));
  }
}

}  // namespace
}  // namespace fmmformer::cli
