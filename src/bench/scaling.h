// SPDX-License-Identifier: Apache-2.0
// The paper's figure of time and memory against length: softmax, linear and FMM attention.
#pragma once

#include <c10/core/Device.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/attention_cases.h"
#include "bench/statistics.h"

namespace fmmformer::bench {

struct ScalingMethod {
  std::string name;
  std::string attention;  // softmax, linear, fmm
  std::vector<FeatureMap> feature_maps;
  int64_t bandwidth = 0;
  bool keeps_matrix = false;  // softmax that writes its N x N matrix to memory

  bool is_softmax() const { return feature_maps.empty() && bandwidth == 0; }
};

/// softmax, 1 kernel (linear), 2 kernels, 3 kernels, 3 kernels + band 30.
std::vector<ScalingMethod> scaling_methods();

/// Softmax as the paper has it, whose memory grows with the square of the length.
ScalingMethod softmax_with_matrix();

/// One attention layer of the copy task's geometry: causal, 8 heads of 32.
AttentionCase scaling_case(const ScalingMethod& method, int64_t length, int64_t batch);

/// Time and memory of one sample: those of a batch, divided by its size.
struct ScalingPoint {
  int64_t length = 0;
  Timing timing = {};
  int64_t peak_bytes = 0;    // beyond the inputs
  std::string failure = {};  // why it was not measured
};

struct ScalingPlan {
  std::vector<int64_t> lengths;  // rising
  double longest_run = 20;       // seconds: a method is not asked for a run that takes longer
  TimingPlan timing;
  c10::Device device = c10::kCPU;
  c10::ScalarType dtype = c10::kFloat;
  // A batch has as many samples as give this many tokens, at least one; fewer where they do not
  // fit.
  int64_t batch_tokens = 1;

  int64_t batch(int64_t length) const { return std::max<int64_t>(1, batch_tokens / length); }
};

/// The paper's protocol on a GPU, as far as it is told: short samples come in batches of 2^16
/// tokens, times and memory are a sample's; no run of more than a second, which ends softmax.
ScalingPlan gpu_scaling_plan(const c10::Device& device);

/// Forward and backward of one method at every length. `progress` is called before each.
std::vector<ScalingPoint> measure_scaling(const ScalingMethod& method, const ScalingPlan& plan,
                                          const std::function<void(int64_t length)>& progress);

/// The exponent p of time ~ length^p between the last two measured points at least a factor 4
/// apart; 0 when there are none.
double growth_exponent(const std::vector<ScalingPoint>& points);

}  // namespace fmmformer::bench
