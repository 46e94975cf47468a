// SPDX-License-Identifier: Apache-2.0
#include "bench/statistics.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

namespace fmmformer::bench {
namespace {

TEST(Statistics, OneSlowRunDoesNotMoveTheMedian) {
  const Timing timing = summarise({1.0, 1.1, 0.9, 1.0, 50.0});
  EXPECT_DOUBLE_EQ(timing.median, 1.0);
  EXPECT_DOUBLE_EQ(timing.best, 0.9);
  EXPECT_EQ(timing.repeats, 5);
}

TEST(Statistics, QuartilesInterpolateBetweenNeighbours) {
  const Timing timing = summarise({4, 1, 3, 2});
  EXPECT_DOUBLE_EQ(timing.lower, 1.75);
  EXPECT_DOUBLE_EQ(timing.median, 2.5);
  EXPECT_DOUBLE_EQ(timing.upper, 3.25);
  EXPECT_DOUBLE_EQ(timing.spread(), 0.3);
}

TEST(Statistics, NothingToSummariseIsAnError) {
  EXPECT_THROW(summarise({}), std::invalid_argument);
}

TEST(Statistics, RunsInARowShareTheirTime) {
  const Timing timing = summarise({4, 1, 3, 2}).per_run(10);
  EXPECT_DOUBLE_EQ(timing.median, 0.25);
  EXPECT_DOUBLE_EQ(timing.spread(), 0.3);
  EXPECT_EQ(timing.repeats, 4);
}

TEST(Statistics, AnotherClockMayKeepTheTime) {
  int runs = 0;
  const Work work = [&] { ++runs; };
  const Clock clock = [](const Work& timed) {
    timed();
    return 7.0;
  };
  const TimingPlan plan{.warm_up_seconds = 0, .seconds = 1, .minimum_repeats = 2};
  EXPECT_DOUBLE_EQ(time_in_turns({&work, 1}, plan, clock).front().median, 7);
  EXPECT_GE(runs, 3);
}

TEST(Statistics, CandidatesTakeTurns) {
  std::string order;
  const std::vector<std::function<void()>> candidates = {[&] { order += 'a'; },
                                                         [&] { order += 'b'; }};
  time_in_turns(candidates, {.warm_up_seconds = 0,
                             .seconds = 1,
                             .runs_per_turn = 2,
                             .minimum_repeats = 3,
                             .maximum_repeats = 3});
  // The warm-up, then turns of one run that does not count and at most two that do.
  EXPECT_EQ(order,
            "ab"
            "aaabbb"
            "aabb");
}

TEST(Statistics, ASlowCandidateGetsFewerRepeatsThanAFastOne) {
  const std::vector<std::function<void()>> candidates = {
      [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); },
      [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }};
  const std::vector<Timing> timings = time_in_turns(
      candidates,
      {.warm_up_seconds = 0, .seconds = 0.05, .minimum_repeats = 2, .maximum_repeats = 100});
  EXPECT_LE(timings[0].repeats, 4);
  EXPECT_GE(timings[1].repeats, 10);
  EXPECT_GE(timings[0].median, 0.019);
}

}  // namespace
}  // namespace fmmformer::bench
