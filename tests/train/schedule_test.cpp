// SPDX-License-Identifier: Apache-2.0
#include "train/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <stdexcept>

namespace fmmformer::train {
namespace {

constexpr double kTiny = 1e-12;  // of learning rates of 1e-4: what double leaves after a few steps

void expect_update(const ScheduledUpdate& update, double learning_rate, double beta1) {
  EXPECT_NEAR(update.learning_rate, learning_rate, 1e-12 * std::abs(learning_rate) + 1e-22);
  EXPECT_NEAR(update.beta1, beta1, kTiny);
}

TEST(Schedule, ConstantStaysWhereItIs) {
  const ScheduleConfig config{.learning_rate = 0.25, .beta1 = 0.8};
  for (const int64_t update : {0, 1, 999, 5000}) {
    expect_update(scheduled_update(config, update, 1000), 0.25, 0.8);
  }
}

TEST(Schedule, CopyTaskFallsToATenthAfterThreeThousandUpdates) {
  const ScheduleConfig config{
      .kind = ScheduleKind::kStepDecay, .learning_rate = 1e-3, .decay_after = {3000}};
  expect_update(scheduled_update(config, 0, 10000), 1e-3, 0.9);
  expect_update(scheduled_update(config, 2999, 10000), 1e-3, 0.9);
  expect_update(scheduled_update(config, 3000, 10000), 1e-4, 0.9);
  expect_update(scheduled_update(config, 9999, 10000), 1e-4, 0.9);
}

TEST(Schedule, StepDecayFallsAtEachOfItsSteps) {
  const ScheduleConfig config{.kind = ScheduleKind::kStepDecay,
                              .learning_rate = 8,
                              .decay_after = {2, 4},
                              .decay_factor = 0.5};
  const double wanted[] = {8, 8, 4, 4, 2, 2};
  for (int64_t update = 0; update < 6; ++update) {
    expect_update(scheduled_update(config, update, 6), wanted[update], 0.9);
  }
}

ScheduleConfig listops() {
  return {.kind = ScheduleKind::kOneCycle, .learning_rate = 1e-4, .warmup = 1000};
}

TEST(Schedule, OneCycleHasTheValuesOfTheAuthorsRun) {
  // T = 5000, U = 999: by hand from the closed form.
  const ScheduleConfig config = listops();
  expect_update(scheduled_update(config, 0, 5000), 4e-6, 0.95);
  expect_update(scheduled_update(config, 333, 5000), 4e-6 + 96e-6 / 3, 0.95 - 0.1 / 3);
  expect_update(scheduled_update(config, 999, 5000), 1e-4, 0.85);
  expect_update(scheduled_update(config, 1999, 5000), 1e-4 + (4e-10 - 1e-4) * 0.25, 0.875);
  expect_update(scheduled_update(config, 4999, 5000), 4e-10, 0.95);
}

TEST(Schedule, OneCycleStaysAtItsEndAfterTheLastUpdate) {
  expect_update(scheduled_update(listops(), 6000, 5000), 4e-10, 0.95);
}

TEST(Schedule, OneCycleWithoutCyclingKeepsBeta1) {
  ScheduleConfig config = listops();
  config.cycle_beta1 = false;
  for (const int64_t update : {0, 500, 999, 3000}) {
    EXPECT_EQ(scheduled_update(config, update, 5000).beta1, 0.9);
  }
}

TEST(Schedule, OneCycleWithoutWarmUpBeginsAtThePeak) {
  ScheduleConfig config = listops();
  for (const int64_t warmup : {0, 1}) {
    config.warmup = warmup;
    expect_update(scheduled_update(config, 0, 5), 1e-4, 0.85);
    expect_update(scheduled_update(config, 4, 5), 4e-10, 0.95);
  }
}

TEST(Schedule, OneCycleThatIsAllWarmUpEndsAtThePeak) {
  ScheduleConfig config = listops();
  config.warmup = 5;
  expect_update(scheduled_update(config, 4, 5), 1e-4, 0.85);
  config.warmup = 1;
  expect_update(scheduled_update(config, 0, 1), 1e-4, 0.85);
}

TEST(Schedule, LanguageModelHasTheAuthorsRates) {
  const ScheduleConfig config{.kind = ScheduleKind::kCosine,
                              .learning_rate = 2.5e-4,
                              .warmup = 2000,
                              .first_at_peak = true};
  const auto rate = [&](int64_t number) {  // counted from 1, as the published code counts
    return scheduled_update(config, number - 1, 500000).learning_rate;
  };
  EXPECT_DOUBLE_EQ(rate(1), 2.5e-4);
  EXPECT_DOUBLE_EQ(rate(2), 2.5e-4 / 2000);
  EXPECT_DOUBLE_EQ(rate(1001), 1.25e-4);
  EXPECT_DOUBLE_EQ(rate(2000), 2.5e-4 * 1999 / 2000);
  EXPECT_DOUBLE_EQ(rate(2001), 1.25e-4 * (1 + std::cos(std::numbers::pi * 2000 / 5e5)));
  EXPECT_DOUBLE_EQ(rate(250001), 1.25e-4);
  EXPECT_NEAR(rate(500000), 0, 1e-14);
}

TEST(Schedule, CosineWithoutTheQuirkWarmsUpCleanly) {
  const ScheduleConfig config{.kind = ScheduleKind::kCosine, .learning_rate = 1, .warmup = 4};
  expect_update(scheduled_update(config, 0, 8), 0.25, 0.9);
  expect_update(scheduled_update(config, 3, 8), 1.0, 0.9);
  expect_update(scheduled_update(config, 4, 8), 0.5, 0.9);
  expect_update(scheduled_update(config, 8, 8), 0.0, 0.9);
  expect_update(scheduled_update(config, 9, 8), 0.0, 0.9);
}

TEST(Schedule, WarmUpLongerThanTheRunIsAnError) {
  EXPECT_NO_THROW(check_schedule(listops(), 1000));
  try {
    check_schedule(listops(), 999);
    FAIL() << "no error";
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("1000"));
    EXPECT_THAT(error.what(), testing::HasSubstr("999"));
  }
}

}  // namespace
}  // namespace fmmformer::train
