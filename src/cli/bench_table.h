// SPDX-License-Identifier: Apache-2.0
// What `bench attention` prints and stores.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "bench/attention_benchmark.h"
#include "bench/machine.h"

namespace fmmformer::cli {

struct BenchmarkRecord {
  bench::Machine machine;
  std::string command;  // that made it
  bench::Pass pass = bench::Pass::kForwardBackward;
  std::vector<bench::VariantRow> variants = {};
};

/// The heading, with a column per peer. `peers` also fixes the order of the columns.
std::string table_heading(const std::vector<std::string>& peers);

/// "-" stands where a peer was not run.
std::string table_row(const bench::BenchmarkRow& row, const std::vector<std::string>& peers);

std::string variant_heading();
std::string variant_row(const bench::VariantRow& row);

nlohmann::json row_json(const bench::BenchmarkRow& row);
/// `rows`: an array of row_json.
nlohmann::json to_json(const BenchmarkRecord& record, const nlohmann::json& rows);

}  // namespace fmmformer::cli
