// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "bench/scaling.h"
#include "cli/command.h"

namespace fmmformer::cli {

struct ScalingRequest {
  bench::ScalingPlan plan;
  std::string command;  // for the record
};

/// Measures and prints; returns the record for a report.
nlohmann::ordered_json measure_scaling_record(const ScalingRequest& request);

int run_bench_scaling(const CommandLine& line);

}  // namespace fmmformer::cli
