// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "fmmformer/attention/fmm_attention.h"

namespace fmmformer {

struct FullAttentionOptions {
  bool causal = false;
  std::optional<double> scale;  // none: 1 / sqrt(D)
  double dropout = 0.0;         // torch's own generator, not inputs.dropout_seed
};

/// The quadratic baseline: softmax attention over all keys, with the layout and the mask rules of
/// fmm_attention: [B, N, H, D] in and out, a masked token is dead on both sides.
///
/// Runs on torch's fused kernels where full_attention_is_fused, with the same bits in every run
/// and, under a mask, at the cost of the real tokens alone; elsewhere on torch's
/// scaled_dot_product_attention.
at::Tensor full_attention(const AttentionInputs& inputs, const FullAttentionOptions& options);

/// True for CUDA tensors in half precision with D = Dv, a multiple of 8 up to 256.
bool full_attention_is_fused(const AttentionInputs& inputs);

}  // namespace fmmformer
