// SPDX-License-Identifier: Apache-2.0
// What a GPU is held to beyond one row's time: how rows compare with each other.
#pragma once

#include <string>
#include <vector>

#include "bench/gpu_benchmark.h"

namespace fmmformer::bench {

/// One statement, what was measured, and what is wanted, as text; `met` says whether it holds.
struct Bar {
  std::string what;
  std::string measured;
  std::string wanted;
  bool met = false;
};

/// A number by a format of printf, for a bar's text.
std::string bar_number(const char* format, double value);

/// The bars that these rows can answer, per type: all limits, linear growth from 65536 to 2^20
/// tokens, eager runs close to replayed graphs, and (bf16) the distance to softmax at 65536 tokens
/// and wherever there is a limit, and the shortest length at which softmax is slower. A row that
/// failed misses its limits.
std::vector<Bar> bars_of(const std::vector<GpuRow>& rows);

Bar step_bar(const Timing& step, c10::ScalarType dtype);

}  // namespace fmmformer::bench
