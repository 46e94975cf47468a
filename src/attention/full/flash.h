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

/// q, k, v are [B, H, N, D]. True for CUDA tensors in half precision with one D, a multiple of 8;
/// with a mask there must be room for eight channels more, and bf16's range for what they hold.
bool flash_applies(const at::Tensor& q, const at::Tensor& v, const FlashOptions& options,
                   bool masked);

/// `live` is bool [B, 1, N, 1], true = a real token; none: all are. What dead tokens hold must be
/// finite, and what comes out for them means nothing. Cost: N^2, memory N.
at::Tensor flash_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const std::optional<at::Tensor>& live, const FlashOptions& options);

}  // namespace fmmformer
