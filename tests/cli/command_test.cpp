// SPDX-License-Identifier: Apache-2.0
#include "cli/command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

namespace fmmformer::cli {
namespace {

using testing::HasSubstr;

int run_first(const CommandLine& line) { return static_cast<int>(line.arguments.size()) + 10; }
int run_picky(const CommandLine&) {
  throw std::invalid_argument("the value is 7, allowed is 1..5");
}

constexpr Command kCommands[] = {{"first", run_first, "counts"}, {"picky", run_picky, "complains"}};
constexpr CommandTable kTable = {"A program.", kCommands, "program first a b"};

template <typename Work>
std::string usage_error(const Work& work) {
  try {
    work();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Dispatch, HandsTheRestOfTheLineToTheCommand) {
  EXPECT_EQ(dispatch(kTable, {"program", {"first", "a", "b"}}), 12);
}

TEST(Dispatch, HelpIsTheTable) {
  testing::internal::CaptureStdout();
  EXPECT_EQ(dispatch(kTable, {"program", {"--help"}}), kDone);
  const std::string text = testing::internal::GetCapturedStdout();
  for (const auto* part : {"first", "counts", "picky", "complains", "program first a b"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(Dispatch, AnUnknownCommandIsAnsweredWithTheNearestOne) {
  EXPECT_THAT(
      usage_error([] {
        dispatch(kTable, {"program", {"fist"}});
      }),
      testing::AllOf(HasSubstr("unknown command 'fist'"), HasSubstr("did you mean first?")));
}

TEST(Dispatch, AMistakeFoundDeeperDownNamesTheCommand) {
  EXPECT_EQ(usage_error([] {
              dispatch(kTable, {"program", {"picky"}});
            }),
            "program picky: the value is 7, allowed is 1..5");
}

class Options : public testing::Test {
 protected:
  Options() : app_("An example.") {
    app_.add_flag("--quick", quick_, "be quick");
    app_.add_option("--threads", threads_, "how many")->check(CLI::Range(1, 8));
  }
  bool read(std::vector<std::string> arguments) {
    return read_options(app_, {"program first", std::move(arguments)});
  }

  CLI::App app_;
  bool quick_ = false;
  int threads_ = 0;
};

TEST_F(Options, AreReadInOrder) {
  EXPECT_TRUE(read({"--threads", "3", "--quick"}));
  EXPECT_TRUE(quick_);
  EXPECT_EQ(threads_, 3);
}

TEST_F(Options, AnUnknownOneIsAnsweredWithTheNearest) {
  EXPECT_THAT(usage_error([&] { read({"--quik"}); }),
              testing::AllOf(HasSubstr("program first"), HasSubstr("--quik"),
                             HasSubstr("did you mean --quick?")));
  EXPECT_THAT(usage_error([&] { read({"--thread=3"}); }), HasSubstr("did you mean --threads?"));
}

TEST_F(Options, AnArgumentThatNobodyAskedForIsAnError) {
  EXPECT_THAT(usage_error([&] { read({"surplus"}); }), HasSubstr("unexpected argument surplus"));
}

TEST_F(Options, AValueOutOfRangeIsAnErrorThatShowsTheRange) {
  EXPECT_THAT(usage_error([&] {
                read({"--threads", "9"});
              }),
              testing::AllOf(HasSubstr("9"), HasSubstr("1"), HasSubstr("8")));
  EXPECT_THAT(usage_error([&] { read({"--threads", "many"}); }), HasSubstr("many"));
}

TEST_F(Options, HelpIsPrintedAndNothingRuns) {
  testing::internal::CaptureStdout();
  EXPECT_FALSE(read({"--help"}));
  EXPECT_THAT(testing::internal::GetCapturedStdout(), HasSubstr("--threads"));
}

}  // namespace
}  // namespace fmmformer::cli
