// SPDX-License-Identifier: Apache-2.0
// Rows of a benchmark, each measured in a process of its own (own_process.h), so that no figure is
// that of memory which the cases before it left behind. Before the first thread is started.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "bench/attention_benchmark.h"
#include "bench/machine.h"

namespace fmmformer::cli {

/// The machine with its product rate.
bench::Machine measured_machine();

/// Prints the row that `measure` returns, and returns it as row_json.
nlohmann::json measured_row(const std::vector<std::string>& peers,
                            const std::function<bench::BenchmarkRow()>& measure);

}  // namespace fmmformer::cli
