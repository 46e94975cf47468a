// SPDX-License-Identifier: Apache-2.0
// The shapes and options of one call, read once and checked once, by every backend.
#pragma once

#include <cstdint>

#include "fmmformer/attention/fmm_attention.h"

namespace fmmformer {

struct Problem {
  int64_t batch = 0;
  int64_t length = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t value_dim = 0;
  // Resolved: near_scale is set, and the window is cut to what can matter (right = 0 when causal,
  // both below length), so that windows of the same meaning run the same code on the same numbers.
  FmmOptions options;

  int64_t feature_maps() const { return static_cast<int64_t>(options.feature_maps.size()); }
};

/// Throws c10::ValueError in the name of `function` when something does not fit.
Problem checked_problem(const char* function, const AttentionInputs& inputs,
                        const BlendWeights& weights, const FmmOptions& options);

/// The part of the check that needs no batch and no length, which are symbolic under torch.compile.
void check_kinds(const char* function, const AttentionInputs& inputs, const BlendWeights& weights);

/// The part of the check that needs no tensor.
void check_options(const char* function, const FmmOptions& options);

/// A weight's strides as [maps, heads, channels]: 0 where one number stands for many.
struct WeightStrides {
  int64_t map, head, channel;
};
WeightStrides weight_strides(const at::Tensor& weight);

/// Whether a weight is the same for all channels of a head.
bool is_uniform_over_channels(const std::optional<at::Tensor>& weight);

/// Memory for the gradient of q, k or v: laid out like it, so that nothing is copied when it is
/// accumulated, unless that is no layout for distinct rows (expanded or overlapping inputs).
at::Tensor empty_gradient_of(const at::Tensor& input);

/// fp64 for fp64, else fp32: what sums, states and softmax are kept in.
at::ScalarType accumulation_type(at::ScalarType type);

}  // namespace fmmformer
