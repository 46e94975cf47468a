// SPDX-License-Identifier: Apache-2.0
// What `bench attention --device cuda` prints and stores.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "bench/gpu_bars.h"
#include "train/run_recorder.h"

namespace fmmformer::cli {

struct GpuBenchmarkRecord {
  std::string subject = "fmm_attention";
  std::string gpu;
  double copy_rate = 0;  // bytes a second
  std::vector<bench::GpuRow> rows = {};
  std::vector<bench::Bar> bars = {};
};

/// The heading, with a column per peer. `peers` also fixes the order of the columns.
std::string gpu_heading(const std::vector<std::string>& peers);

/// Times in ms. A time above its limit has a "!" behind the limit; "-" stands where a peer was not
/// run or a case has no limit.
std::string gpu_row(const bench::GpuRow& row, const std::vector<std::string>& peers);

std::string bar_line(const bench::Bar& bar);

/// A record of kind "gpu" (report/record.h).
nlohmann::ordered_json to_json(const GpuBenchmarkRecord& record,
                               const train::RunIdentity& identity);

}  // namespace fmmformer::cli
