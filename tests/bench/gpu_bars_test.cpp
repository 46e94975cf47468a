// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_bars.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fmmformer::bench {
namespace {

using testing::HasSubstr;

GpuRow row(std::string_view name, double ours, double softmax = 0) {
  GpuRow made{.attention_case = case_named(name)};
  made.ours = {.graph = {.median = ours}, .eager = {.median = ours}};
  made.peers = {{.name = "sdpa"}};
  if (softmax > 0) made.peers[0].measured = GpuMeasurement{.graph = {.median = softmax}};
  return made;
}

const Bar* bar_with(const std::vector<Bar>& bars, std::string_view part) {
  for (const Bar& bar : bars) {
    if (bar.what.find(part) != std::string::npos) return &bar;
  }
  return nullptr;
}

TEST(GpuBars, LongerSequencesMayTakeATenthMoreThanTheirShare) {
  std::vector<GpuRow> rows = {row("gpu_65536_r3_band30", 1e-3), row("gpu_262144_r3_band30", 4.3e-3),
                              row("gpu_1048576_r3_band30", 18e-3)};
  const auto bars = bars_of(rows);
  ASSERT_NE(bar_with(bars, "262144 tokens"), nullptr);
  EXPECT_TRUE(bar_with(bars, "262144 tokens")->met);
  EXPECT_EQ(bar_with(bars, "262144 tokens")->measured, "4.30 x");
  EXPECT_FALSE(bar_with(bars, "1048576 tokens")->met);
}

TEST(GpuBars, TheCrossoverIsTheShortestOfAnUnbrokenRunOfWins) {
  std::vector<GpuRow> rows = {row("gpu_short_128", 1, 2), row("gpu_short_256", 2, 1),
                              row("gpu_short_512", 1, 2), row("gpu_short_1024", 1, 2)};
  EXPECT_EQ(bar_with(bars_of(rows), "shortest length")->measured, "512");
  EXPECT_TRUE(bar_with(bars_of(rows), "shortest length")->met);
  rows.back().ours.graph.median = 3;
  EXPECT_EQ(bar_with(bars_of(rows), "shortest length")->measured, "over 1024");
  EXPECT_FALSE(bar_with(bars_of(rows), "shortest length")->met);
}

TEST(GpuBars, EagerIsHeldAgainstTheGraphAtItsWorst) {
  std::vector<GpuRow> rows = {row("gpu_copy", 1e-3), row("gpu_text", 1e-3)};
  rows[1].ours.eager.median = 1.2e-3;
  const auto bars = bars_of(rows);
  const Bar* bar = bar_with(bars, "eager");
  EXPECT_THAT(bar->what, HasSubstr("gpu_text"));
  EXPECT_EQ(bar->measured, "0.200 ms");
  EXPECT_FALSE(bar->met);
}

TEST(GpuBars, RowsOverTheirLimitsAreCountedAndNamed) {
  std::vector<GpuRow> rows = {row("gpu_copy", 0.14e-3), row("gpu_medium", 0.08e-3),
                              row("gpu_short_512", 1)};
  auto bars = bars_of(rows);
  EXPECT_EQ(bar_with(bars, "within their limits")->measured, "2 of 2");
  EXPECT_TRUE(bar_with(bars, "within their limits")->met);
  rows[0].ours.graph.median = 0.16e-3;
  bars = bars_of(rows);
  EXPECT_EQ(bar_with(bars, "within their limits")->measured, "1 of 2");
  EXPECT_THAT(bar_with(bars, "within their limits")->what, HasSubstr("(not gpu_copy)"));
  EXPECT_FALSE(bar_with(bars, "within their limits")->met);
}

TEST(GpuBars, MemoryBeyondItsLimitCountsLikeTime) {
  std::vector<GpuRow> rows = {row("gpu_65536_r3_band30", 1e-3)};
  rows[0].ours.peak_bytes = int64_t{421} << 20;
  const auto bars = bars_of(rows);
  EXPECT_FALSE(bar_with(bars, "within their limits")->met);
}

TEST(GpuBars, SoftmaxMustBeSlowerWhereverThereIsALimit) {
  std::vector<GpuRow> rows = {row("gpu_copy", 1, 3), row("gpu_medium", 1, 1.5),
                              row("gpu_short_128", 2, 1)};
  auto bars = bars_of(rows);
  EXPECT_EQ(bar_with(bars, "at worst (gpu_medium)")->measured, "1.50 x");
  EXPECT_TRUE(bar_with(bars, "at worst (gpu_medium)")->met);
  rows[1].ours.graph.median = 2;
  bars = bars_of(rows);
  EXPECT_FALSE(bar_with(bars, "at worst (gpu_medium)")->met);
}

TEST(GpuBars, SoftmaxMustBeTwentyTimesSlowerAtLength) {
  const auto bars = bars_of({row("gpu_65536_r3_band30", 1e-3, 35e-3)});
  EXPECT_TRUE(bar_with(bars, "softmax over 3 + 30")->met);
}

TEST(GpuBars, ARowThatFailedMissesItsLimitsAndHasNoOtherBar) {
  GpuRow failed = row("gpu_65536_r3_band30", 1e-3, 35e-3);
  failed.failure = "out of memory";
  const auto bars = bars_of({failed});
  ASSERT_EQ(bars.size(), 1);
  EXPECT_THAT(bars[0].what, HasSubstr("(not gpu_65536_r3_band30)"));
  EXPECT_EQ(bars[0].measured, "0 of 1");
  EXPECT_FALSE(bars[0].met);
}

TEST(GpuBars, WhatWasNotMeasuredHasNoBar) {
  GpuRow failed = row("gpu_short_128", 1, 2);  // has no limit
  failed.failure = "out of memory";
  EXPECT_TRUE(bars_of({failed}).empty());
  EXPECT_TRUE(bars_of({}).empty());
}

TEST(GpuBars, AStepHasTenMicroseconds) {
  EXPECT_TRUE(step_bar({.median = 9e-6}, c10::kBFloat16).met);
  EXPECT_FALSE(step_bar({.median = 11e-6}, c10::kBFloat16).met);
}

TEST(GpuRows, Fp32MayTakeFourTimesAsLong) {
  GpuRow one = row("gpu_65536_r3_band30", 1e-3);
  EXPECT_DOUBLE_EQ(*one.limit_seconds(), 1.6e-3);
  EXPECT_EQ(*one.limit_bytes(), 420 << 20);
  one.dtype = c10::kFloat;
  EXPECT_DOUBLE_EQ(*one.limit_seconds(), 6.4e-3);
  EXPECT_FALSE((GpuRow{.attention_case = one.attention_case, .dtype = c10::kHalf}).limit_seconds());
  EXPECT_FALSE(one.limit_bytes());
  EXPECT_FALSE(row("gpu_short_128", 1).limit_seconds());
}

}  // namespace
}  // namespace fmmformer::bench
