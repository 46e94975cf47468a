// SPDX-License-Identifier: Apache-2.0
#include "bench/floor.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace fmmformer::bench {
namespace {

int64_t counted_entries(const AttentionCase& c) {
  const FmmOptions options = options_of(c);
  int64_t count = 0;
  for (int64_t i = 0; i < c.length; ++i) {
    const int64_t right = options.causal ? 0 : options.window->right;
    count += std::min(c.length - 1, i + right) - std::max<int64_t>(0, i - options.window->left) + 1;
  }
  return count;
}

TEST(Floor, BandEntriesAreThoseOfTheRowsOneByOne) {
  for (const auto* name : {"plain_causal", "plain_two_sided", "band_wider_than_sequence_two_sided",
                           "window_3_7_two_sided", "window_3_7_cut_by_causal", "length_1_causal"}) {
    EXPECT_EQ(band_entries(case_named(name)), counted_entries(case_named(name))) << name;
  }
  EXPECT_EQ(band_entries(case_named("far_field_only_causal")), 0);
}

TEST(Floor, MatchesTheFormulaForEqualDimensions) {
  const AttentionCase& c = case_named("causal_65536_r3_band30");
  const double d = 64, w = 30, rows = 65536.0 * 8;
  const double forward = rows * (3 * 4 * d * d + 4 * w * d);
  const double backward = rows * (3 * 10 * d * d + 10 * w * d);
  EXPECT_NEAR(floor_operations(c, Pass::kForward) / forward, 1,
              1e-3);  // the first rows have fewer entries
  EXPECT_NEAR(floor_operations(c, Pass::kForwardBackward) / (forward + backward), 1, 1e-3);
}

TEST(Floor, TwoSidedFarFieldsCostLessBackward) {
  AttentionCase c{.name = "a", .bandwidth = 0, .causal = true};
  const double causal = floor_operations(c, Pass::kForwardBackward);
  c.causal = false;
  EXPECT_DOUBLE_EQ(floor_operations(c, Pass::kForwardBackward) / causal, 12.0 / 14.0);
}

TEST(Floor, InBytesIsEveryTensorOncePerPass) {
  const AttentionCase& c = case_named("gpu_65536_r3_band30");
  const double tensor = 65536.0 * 8 * 64 * 2;
  EXPECT_DOUBLE_EQ(floor_bytes(c, c10::kBFloat16, Pass::kForward), 4 * tensor);
  EXPECT_DOUBLE_EQ(floor_bytes(c, c10::kBFloat16, Pass::kForwardBackward), 11 * tensor);
  EXPECT_DOUBLE_EQ(floor_bytes(c, c10::kFloat, Pass::kForward), 8 * tensor);
  const AttentionCase wide_values{
      .name = "a", .batch = 1, .length = 1, .heads = 1, .head_dim = 2, .value_dim = 8};
  EXPECT_DOUBLE_EQ(floor_bytes(wide_values, c10::kFloat, Pass::kForwardBackward),
                   4 * (6 * 2 + 5 * 8));
}

TEST(Floor, IsATimeAtTheMachinesRate) {
  EXPECT_NEAR(floor_seconds(case_named(kPlainCase), Pass::kForwardBackward, 200e9), 16.3e-3,
              0.3e-3);
}

}  // namespace
}  // namespace fmmformer::bench
