// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace fmmformer::cli {
namespace {

using testing::HasSubstr;

bench::BenchmarkRow example_row() {
  bench::BenchmarkRow row{.attention_case = bench::case_named(bench::kPlainCase)};
  row.ours = {.median = 0.034, .lower = 0.033, .upper = 0.035, .best = 0.0325, .repeats = 40};
  row.peak_bytes = 24 << 20;
  row.floor = 0.017;
  row.peers.push_back({.name = "sdpa", .timing = bench::Timing{.median = 0.125}, .ratio = 3.676});
  row.peers.push_back({.name = "dense_near", .why_not = "too slow"});
  return row;
}

TEST(BenchTable, ARowShowsTimeFloorMemoryAndRatios) {
  const std::string text = table_row(example_row(), {"sdpa", "dense_near"});
  for (const auto* part : {"causal_2048_r3_band30", "1x2048x8x64 causal 3+30", "34.00 ms +-3%",
                           "2.00", "24.0", "50%", "3.68x"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(BenchTable, APeerThatWasNotRunIsADash) {
  EXPECT_TRUE(table_row(example_row(), {"sdpa", "dense_near"}).ends_with(" -"));
}

TEST(BenchTable, HeadingAndRowsHaveTheSameWidth) {
  const std::vector<std::string> peers = {"sdpa", "composite", "dense_near", "compiled"};
  EXPECT_EQ(table_heading(peers).size(), table_row(example_row(), peers).size());
}

TEST(BenchTable, TheRecordSaysWhereAndHowItWasMade) {
  BenchmarkRecord record;
  record.machine.cpu = "a CPU";
  record.machine.product_rate = 2e11;
  record.command = "fmmformer bench";
  record.variants.push_back({.name = "with_dropout", .shape = "s", .times_plain = 1.1});
  const nlohmann::json json = to_json(record, nlohmann::json::array({row_json(example_row())}));
  EXPECT_EQ(json["machine"]["cpu"], "a CPU");
  EXPECT_EQ(json["machine"]["product_rate_gflops"], 200.0);
  EXPECT_EQ(json["command"], "fmmformer bench");
  EXPECT_TRUE(json.contains("commit"));
  const nlohmann::json& row = json["rows"][0];
  EXPECT_EQ(row["shape"]["length"], 2048);
  EXPECT_EQ(row["dtype"], "fp32");
  EXPECT_NEAR(row["ours"]["median_ms"].get<double>(), 34, 1e-9);
  EXPECT_NEAR(row["peers"]["sdpa"]["times_ours"].get<double>(), 3.676, 1e-9);
  EXPECT_EQ(row["peers"]["dense_near"]["not_run"], "too slow");
  EXPECT_EQ(json["variants"][0]["times_plain"], 1.1);
}

}  // namespace
}  // namespace fmmformer::cli
