// SPDX-License-Identifier: Apache-2.0
// Timed cases of a GPU with one thing changed: every option is to run in fused kernels.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/gpu_bars.h"
#include "bench/gpu_benchmark.h"

namespace fmmformer::bench {

struct GpuVariant {
  AttentionCase plain;  // the nearest case that kernels are tuned for
  std::string change;   // "with a token mask"
  AttentionCase changed;
};

/// Token masks, odd lengths, dropout, weights that differ by channel and heads before tokens, for
/// each kind of head; 48, 80 and 96 channels beside 64 and 128.
std::vector<GpuVariant> gpu_variants();

/// How many times the plain case's time the changed one takes: forward and backward as replayed
/// graphs, in turns. None where the GPU has too little memory for both.
std::optional<double> measure_gpu_variant(const GpuVariant& variant, c10::ScalarType dtype,
                                          const GpuBenchmarkOptions& options);

/// What a variant may take, in times of the plain case's time.
inline constexpr double kMostTimesPlain = 1.3;
Bar variant_bar(const GpuVariant& variant, c10::ScalarType dtype,
                std::optional<double> times_plain);

}  // namespace fmmformer::bench
