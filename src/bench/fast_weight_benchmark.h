// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bench/attention_benchmark.h"
#include "bench/fast_weight_cases.h"

namespace fmmformer::bench {

/// The floating-point operations of the exact method between chunks, and nothing else. Per row and
/// head: forward 6 D Dv (what keys and queries read, what is written), backward 12 D Dv.
double floor_operations(const FastWeightCase& one, Pass pass);

/// fast_weight_attention beside torch loops over chunks of 32, 64 and 128 tokens, timed side by
/// side.
BenchmarkRow measure_case(const FastWeightCase& one, const BenchmarkOptions& options);

/// The names of those peers.
std::vector<std::string> fast_weight_peers();

}  // namespace fmmformer::bench
