// SPDX-License-Identifier: Apache-2.0
#include "cli/gpu_bench_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace fmmformer::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

bench::GpuRow example_gpu_row() {
  bench::GpuRow row{.attention_case = bench::case_named("gpu_65536_r3_band30")};
  row.ours = {.graph = {.median = 1.5e-3}, .eager = {.median = 1.6e-3}, .peak_bytes = 300 << 20};
  row.forward = {.median = 0.5e-3};
  row.floor = 0.15e-3;
  row.peers = {{.name = "sdpa", .measured = bench::GpuMeasurement{.graph = {.median = 45e-3}}},
               {.name = "composite", .why_not = "too slow"}};
  return row;
}

TEST(GpuBenchTable, ARowShowsTimesLimitFloorMemoryAndRatios) {
  const std::string text = gpu_row(example_gpu_row(), {"sdpa", "composite"});
  for (const auto* part : {"gpu_65536_r3_band30", "1x65536x8x64 causal 3+30", "bf16", "1.500",
                           "1.600", "0.500", "0.150", "10.0", "300.0", "30.00x"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_TRUE(text.ends_with(" -"));
  EXPECT_THAT(text, Not(HasSubstr("!")));
}

TEST(GpuBenchTable, WhatIsAboveItsLimitIsMarked) {
  bench::GpuRow row = example_gpu_row();
  row.ours.graph.median = 1.7e-3;
  EXPECT_THAT(gpu_row(row, {}), HasSubstr("1.600!"));
  row.ours.peak_bytes = 500 << 20;
  EXPECT_THAT(gpu_row(row, {}), HasSubstr("500.0!"));
}

TEST(GpuBenchTable, HeadingAndRowsHaveTheSameWidth) {
  const std::vector<std::string> peers = {"sdpa", "composite"};
  EXPECT_EQ(gpu_heading(peers).size(), gpu_row(example_gpu_row(), peers).size());
}

TEST(GpuBenchTable, TheRecordIsOneThatAReportReads) {
  bench::GpuRow failed = example_gpu_row();
  failed.failure = "out of memory";
  const GpuBenchmarkRecord record{.gpu = "a GPU",
                                  .copy_rate = 4e12,
                                  .rows = {example_gpu_row(), failed},
                                  .bars = {{.what = "a bar", .met = true}}};
  const nlohmann::ordered_json json = to_json(record, {.commit = "abc"});
  EXPECT_EQ(json["format"], "fmmformer-record");
  EXPECT_EQ(json["kind"], "gpu");
  EXPECT_EQ(json["commit"], "abc");
  const nlohmann::ordered_json& row = json["timings"][0];
  EXPECT_EQ(row["dtype"], "bf16");
  EXPECT_EQ(row["shape"]["length"], 65536);
  EXPECT_NEAR(row["ours"]["graph"]["median_ms"].get<double>(), 1.5, 1e-9);
  EXPECT_NEAR(row["limit_ms"].get<double>(), 1.6, 1e-9);
  EXPECT_EQ(row["peers"]["composite"]["not_run"], "too slow");
  EXPECT_EQ(json["timings"][1]["failure"], "out of memory");
  EXPECT_FALSE(json["timings"][1].contains("ours"));
  EXPECT_TRUE(json["bars"][0]["met"].get<bool>());
}

}  // namespace
}  // namespace fmmformer::cli
