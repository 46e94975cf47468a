// SPDX-License-Identifier: Apache-2.0
#include "report/scaling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace fmmformer::report {
namespace {

/// seconds = fixed + factor * length^power, from 512 up to `longest`.
ScalingSeries series(const std::string& attention, double fixed, double factor, double power,
                     double longest = 65536) {
  ScalingSeries result{.name = attention, .attention = attention};
  for (double length = 512; length <= longest; length *= 2) {
    result.points.push_back({.length = length,
                             .seconds = fixed + factor * std::pow(length, power),
                             .peak_bytes = length * 100 * (attention == "softmax" ? 3 : 1)});
  }
  return result;
}

TEST(Growth, IsOneForLinearAndTwoForQuadraticTime) {
  EXPECT_NEAR(growth_of(series("a", 0, 1e-6, 1), &ScalingPoint::seconds)->exponent, 1, 1e-9);
  EXPECT_NEAR(growth_of(series("a", 0, 1e-9, 2), &ScalingPoint::seconds)->exponent, 2, 1e-9);
}

TEST(Growth, LooksAtTheLongerLengthsWhereFixedCostsNoLongerCount) {
  const auto growth = growth_of(series("a", 0.01, 1e-6, 2), &ScalingPoint::seconds);
  EXPECT_NEAR(growth->exponent, 2, 0.01);
  EXPECT_NEAR(growth->from, 8192, 1e-6);
  EXPECT_NEAR(growth->to, 65536, 1e-6);
}

TEST(Growth, NeedsTwoLengths) {
  EXPECT_FALSE(growth_of(series("a", 0, 1, 1, 512), &ScalingPoint::seconds));
  EXPECT_TRUE(growth_of(series("a", 0, 1, 1, 1024), &ScalingPoint::seconds));
}

TEST(Growth, IgnoresLengthsThatFailed) {
  ScalingSeries failed = series("a", 0, 1e-6, 1);
  failed.points.push_back({.length = 131072, .failure = "out of memory"});
  EXPECT_NEAR(growth_of(failed, &ScalingPoint::seconds)->exponent, 1, 1e-9);
}

TEST(Saving, ComparesAtTheLongestLengthThatBothReached) {
  const auto savings = fmm_savings(
      {series("softmax", 0, 1e-9, 2, 8192), series("linear", 0, 1, 1), series("fmm", 0, 1e-6, 1)});
  ASSERT_EQ(savings.size(), 1U);
  EXPECT_EQ(savings[0].length, 8192);
  EXPECT_NEAR(savings[0].time_ratio, 8.192, 1e-9);
  EXPECT_NEAR(savings[0].memory_ratio, 3, 1e-9);
}

TEST(Saving, IsNotThereWithoutACommonLengthOrABaseline) {
  EXPECT_TRUE(fmm_savings({series("fmm", 0, 1, 1)}).empty());
  ScalingSeries odd{.name = "fmm", .attention = "fmm", .points = {{.length = 700, .seconds = 1}}};
  EXPECT_TRUE(fmm_savings({series("softmax", 0, 1, 2), odd}).empty());
}

TEST(Saving, OfMemoryIsUnknownWhereItWasNotMeasured) {
  ScalingSeries fast = series("fmm", 0, 1e-6, 1);
  for (ScalingPoint& point : fast.points) point.peak_bytes = kUnknown;
  EXPECT_TRUE(std::isnan(saving(fast, series("softmax", 0, 1, 1))->memory_ratio));
}

}  // namespace
}  // namespace fmmformer::report
