// SPDX-License-Identifier: Apache-2.0
#include "bench/scaling.h"

#include <gtest/gtest.h>

namespace fmmformer::bench {
namespace {

std::vector<ScalingPoint> points_of(const std::vector<std::pair<int64_t, double>>& times) {
  std::vector<ScalingPoint> points;
  for (const auto& [length, seconds] : times)
    points.push_back({.length = length, .timing = {.median = seconds}});
  return points;
}

TEST(Scaling, TheExponentIsThatOfTheLongerLengths) {
  EXPECT_NEAR(growth_exponent(points_of({{512, 9}, {1024, 1}, {2048, 4}, {4096, 16}})), 2, 1e-9);
  EXPECT_NEAR(growth_exponent(points_of({{1024, 1}, {4096, 4}})), 1, 1e-9);
}

TEST(Scaling, TooFewPointsHaveNoExponent) {
  EXPECT_EQ(growth_exponent(points_of({{512, 1}, {1024, 2}})), 0);
  EXPECT_EQ(growth_exponent({}), 0);
}

TEST(Scaling, ShortSamplesComeInBatchesAndCountOneByOne) {
  const ScalingPlan alone;
  EXPECT_EQ(alone.batch(512), 1);
  ScalingPlan plan{.lengths = {64}, .batch_tokens = 256};
  EXPECT_EQ(plan.batch(64), 4);
  EXPECT_EQ(plan.batch(1024), 1);
  plan.timing = {.warm_up_seconds = 0, .seconds = 0.01, .minimum_repeats = 2};
  const ScalingMethod fmm = scaling_methods().back();
  const auto in_batches = measure_scaling(fmm, plan, [](int64_t) {});
  plan.batch_tokens = 1;
  const auto one_by_one = measure_scaling(fmm, plan, [](int64_t) {});
  EXPECT_NEAR(
      static_cast<double>(in_batches[0].peak_bytes) / static_cast<double>(one_by_one[0].peak_bytes),
      1, 0.2);
}

TEST(Scaling, SoftmaxWithItsMatrixTakesMemoryOfTheSquare) {
  ScalingPlan plan{.lengths = {256, 512}};
  plan.timing = {.warm_up_seconds = 0, .seconds = 0.01, .minimum_repeats = 2};
  const auto points = measure_scaling(softmax_with_matrix(), plan, [](int64_t) {});
  EXPECT_NEAR(static_cast<double>(points[1].peak_bytes) / static_cast<double>(points[0].peak_bytes),
              4, 0.5);
}

TEST(Scaling, AMethodIsNotAskedForARunThatWouldTakeTooLong) {
  ScalingPlan plan{.lengths = {64, 128, 256}, .longest_run = 0};
  plan.timing = {.warm_up_seconds = 0, .seconds = 0.01, .minimum_repeats = 2};
  std::vector<int64_t> begun;
  const auto points = measure_scaling(scaling_methods().front(), plan,
                                      [&](int64_t length) { begun.push_back(length); });
  EXPECT_EQ(begun, std::vector<int64_t>{64});
  EXPECT_TRUE(points[0].failure.empty());
  EXPECT_GT(points[0].timing.median, 0);
  EXPECT_FALSE(points[1].failure.empty());
  EXPECT_FALSE(points[2].failure.empty());
}

}  // namespace
}  // namespace fmmformer::bench
