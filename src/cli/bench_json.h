// SPDX-License-Identifier: Apache-2.0
// What the records of all benchmarks have in common.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "bench/attention_cases.h"
#include "bench/statistics.h"

namespace fmmformer::cli {

/// Median, quartiles and best in milliseconds, and how many runs they are of.
nlohmann::json timing_json(const bench::Timing& timing);

nlohmann::json case_json(const bench::AttentionCase& attention_case);

/// A case as the scripts of bench/ are told it, and the durations in milliseconds that they answer.
nlohmann::json python_case_json(const bench::AttentionCase& attention_case, c10::ScalarType dtype);
bench::Timing timing_from_json(const nlohmann::json& milliseconds);

}  // namespace fmmformer::cli
