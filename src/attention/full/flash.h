// SPDX-License-Identifier: Apache-2.0
// Softmax attention by torch's fused kernels on a GPU, called directly for two things that
// scaled_dot_product_attention does not do: gradients with the same bits in every run, and token
// masks without a matrix [B, N, N].
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace fmmformer {

struct FlashOptions {
  double scale = 1.0;
  bool causal = false;
  double dropout = 0.0;  // torch's own generator of the device
};

/// For tensors of which full_attention_is_fused. q, k, v, out are [B, N, H, D]. token_mask is bool
/// [B, N], true = a real token; none: all are. What dead tokens hold is never read as a number;
/// their output and their gradients are zeros. Cost: the sum over the batch of (real tokens)^2;
/// memory N. Nothing waits for the device, whatever the mask.
at::Tensor flash_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const std::optional<at::Tensor>& token_mask,
                           const FlashOptions& options);

}  // namespace fmmformer
