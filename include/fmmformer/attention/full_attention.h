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

/// The quadratic baseline: softmax attention over all keys, through torch's
/// scaled_dot_product_attention, with the layout and the mask rules of fmm_attention: [B, N, H, D]
/// in and out, a masked token is dead on both sides.
at::Tensor full_attention(const AttentionInputs& inputs, const FullAttentionOptions& options);

}  // namespace fmmformer
