// SPDX-License-Identifier: Apache-2.0
#include "cli/command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <c10/util/Exception.h>

#include <CLI/CLI.hpp>
#include <tuple>

namespace fmmformer::cli {
namespace {

using testing::HasSubstr;

int run_first(const CommandLine& line) { return static_cast<int>(line.arguments.size()) + 10; }
int run_picky(const CommandLine&) {
  throw std::invalid_argument("the value is 7, allowed is 1..5");
}

int run_unlucky(const CommandLine&) { throw std::runtime_error("the disk is full"); }
int run_torch(const CommandLine&) {
  TORCH_CHECK_VALUE(false, "q has 3 dimensions");
  return kDone;
}

constexpr Command kInner[] = {{"picky", run_picky, "complains"}};
int run_nested(const CommandLine& line) { return dispatch({"Inner.", kInner, "x"}, line); }

constexpr Command kCommands[] = {{"first", run_first, "counts"},
                                 {"picky", run_picky, "complains"},
                                 {"unlucky", run_unlucky, "fails"},
                                 {"torch", run_torch, "checks"},
                                 {"nested", run_nested, "asks"}};
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

struct Ending {
  std::string text;
  int code = kDone;
};

Ending ending_of(std::vector<std::string> arguments) {
  try {
    return {"", dispatch(kTable, {"program", std::move(arguments)})};
  } catch (const CommandError& error) {
    return {error.what(), error.code()};
  }
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
  const Ending ending = ending_of({"fist"});
  EXPECT_EQ(ending.code, kWrongUse);
  EXPECT_THAT(ending.text, testing::AllOf(HasSubstr("program: unknown command 'fist'"),
                                          HasSubstr("did you mean first?")));
}

TEST(Dispatch, EveryErrorNamesItsCommandOnceAndTellsTheUsersMistakesFromFailures) {
  const std::tuple<std::vector<std::string>, const char*, int> endings[] = {
      {{"picky"}, "program picky: the value is 7, allowed is 1..5", kWrongUse},
      {{"torch"}, "program torch: q has 3 dimensions", kWrongUse},
      {{"unlucky"}, "program unlucky: the disk is full", kFailed},
      {{"nested", "picky"}, "program nested picky: the value is 7, allowed is 1..5", kWrongUse},
  };
  for (const auto& [arguments, text, code] : endings) {
    const Ending ending = ending_of(arguments);
    EXPECT_EQ(ending.text, text);
    EXPECT_EQ(ending.code, code) << text;
  }
}

TEST(OutputFile, IsRefusedBeforeTheWorkWhenItsFolderIsNotThere) {
  EXPECT_NO_THROW(check_output_file("--json", ""));
  EXPECT_NO_THROW(check_output_file("--json", "new.json"));
  EXPECT_THAT(usage_error([] { check_output_file("--json", "/no/such/folder/x.json"); }),
              testing::AllOf(HasSubstr("--json"), HasSubstr("/no/such/folder")));
  EXPECT_THAT(usage_error([] { check_output_file("--json", "/"); }), HasSubstr("is a folder"));
}

class Options : public testing::Test {
 protected:
  Options() : app_("An example.") {
    app_.add_flag("--quick", quick_, "be quick");
    app_.add_option("--threads", threads_, "how many")->check(CLI::Range(1, 8));
    require_at_least(app_.add_option("--step", step_, "which"), 0);
  }
  bool read(std::vector<std::string> arguments) {
    return read_options(app_, {"program first", std::move(arguments)});
  }

  CLI::App app_;
  bool quick_ = false;
  int threads_ = 0;
  int64_t step_ = -1;
};

TEST_F(Options, NumbersThatAreNegativeOrTooLongAreRefusedInWords) {
  EXPECT_THAT(usage_error([&] {
                read({"--step", "-1"});
              }),
              HasSubstr("got '-1', allowed: a whole number of 0 or more"));
  EXPECT_THAT(usage_error([&] {
                read({"--step", "99999999999999999999999"});
              }),
              HasSubstr("0 or more and at most 9223372036854775807"));
  double share = 0;
  require_number_at_least(app_.add_option("--share", share, "how much"), 0.5);
  EXPECT_TRUE(read({"--share", "0.75"}));
  for (const char* wrong : {"-1", "0.25", "nan", "inf", "much"}) {
    EXPECT_THAT(usage_error([&] {
                  read({"--share", wrong});
                }),
                HasSubstr("allowed: a number of 0.5 or more"))
        << wrong;
  }
}

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

TEST_F(Options, ANumberBelowWhatIsAllowedIsAnError) {
  EXPECT_THAT(usage_error([&] {
                read({"--step", "-3"});
              }),
              testing::AllOf(HasSubstr("--step"), HasSubstr("-3"), HasSubstr("0 or more")));
  EXPECT_THAT(usage_error([&] { read({"--step=2x"}); }), HasSubstr("2x"));
  EXPECT_TRUE(read({"--step", "0"}));
  EXPECT_EQ(step_, 0);
}

TEST_F(Options, HelpIsPrintedAndNothingRuns) {
  testing::internal::CaptureStdout();
  EXPECT_FALSE(read({"--help"}));
  EXPECT_THAT(testing::internal::GetCapturedStdout(), HasSubstr("--threads"));
}

}  // namespace
}  // namespace fmmformer::cli
