// SPDX-License-Identifier: Apache-2.0
#include "cli/train_progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

namespace fmmformer::cli {
namespace {

using nlohmann::json;
using tasks::Split;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

struct Shown {
  std::string out, err;
};

// What a short run shows that ends with `status`.
Shown show_run(ProgressStyle style, train::RunStatus status) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  {
    const auto listener = make_progress(style);
    listener->started(1234567, 20, train::kPerplexity);
    listener->stepped({.step = 21, .steps = 40, .loss = 1.5});
    listener->measured({.step = 30, .split = Split::kTrain, .loss = 1.25, .metric = 3.5});
    listener->measured(
        {.step = 30, .split = Split::kValid, .loss = 1, .metric = 2.75, .is_best = true});
    listener->saved(30, "runs/x/checkpoints/step-00000030");
    listener->noticed("something odd");
    listener->ended({.status = status,
                     .message = status == train::RunStatus::kFailed ? "it broke" : "",
                     .folder = "runs/x",
                     .step = 40,
                     .metric = train::kPerplexity,
                     .best_metric = 2.75,
                     .best_step = 30,
                     .seconds = 65});
  }
  return {testing::internal::GetCapturedStdout(), testing::internal::GetCapturedStderr()};
}

TEST(TrainProgress, InAPipeItIsPlainLinesThatEndWithTheBestMetricAndTheFolder) {
  const std::string text = show_run(ProgressStyle::kAuto, train::RunStatus::kFinished).out;
  EXPECT_THAT(text, AllOf(HasSubstr("1.23 M parameters, going on after step 20\n"),
                          HasSubstr("valid loss 1.0000  perplexity 2.75  (best so far)\n"),
                          HasSubstr("note: something odd\n"),
                          HasSubstr("done: best perplexity 2.75 at step 30, 1 min 05 s; the run is "
                                    "in runs/x\n")));
  EXPECT_THAT(text, Not(HasSubstr("\033")));
  EXPECT_THAT(text, Not(HasSubstr("3.50")));  // training's own is not for the eye
}

TEST(TrainProgress, ARunThatDidNotFinishIsNotCalledDone) {
  for (const auto status : {train::RunStatus::kInterrupted, train::RunStatus::kFailed})
    EXPECT_THAT(show_run(ProgressStyle::kAuto, status).out, Not(HasSubstr("done")));
}

TEST(TrainProgress, QuietSaysOnlyWhatIsWrong) {
  const Shown shown = show_run(ProgressStyle::kQuiet, train::RunStatus::kFinished);
  EXPECT_EQ(shown.out, "");
  EXPECT_EQ(shown.err, "note: something odd\n");
}

TEST(TrainProgress, JsonIsAnObjectALineAndTheLastSaysHowItEnded) {
  const Shown shown = show_run(ProgressStyle::kJson, train::RunStatus::kFailed);
  std::istringstream lines(shown.out);
  std::vector<json> events;
  for (std::string line; std::getline(lines, line);) events.push_back(json::parse(line));
  ASSERT_EQ(events.size(), 6U);
  EXPECT_EQ(events[0].at("event"), "started");
  EXPECT_EQ(events[2].at("split"), "valid");
  EXPECT_EQ(events[2].at("perplexity"), 2.75);
  EXPECT_EQ(events.back(), json::parse(R"({"event": "ended", "status": "failed",
      "message": "it broke", "folder": "runs/x", "step": 40, "metric": "perplexity", "best": 2.75,
      "best_step": 30, "seconds": 65.0})"));
}

TEST(TrainProgress, DurationsAndCountsAreShort) {
  EXPECT_EQ(duration_text(1.24), "1.2 s");
  EXPECT_EQ(duration_text(59.98), "1 min 00 s");
  EXPECT_EQ(duration_text(185), "3 min 05 s");
  EXPECT_EQ(duration_text(2 * 3600 + 14 * 60 + 29), "2 h 14 min");
  EXPECT_EQ(duration_text(NAN), "?");
  EXPECT_EQ(count_text(950), "950");
  EXPECT_EQ(count_text(12345), "12.3 k");
  EXPECT_EQ(count_text(999950), "1 M");
  EXPECT_EQ(count_text(4561234), "4.56 M");
}

}  // namespace
}  // namespace fmmformer::cli
