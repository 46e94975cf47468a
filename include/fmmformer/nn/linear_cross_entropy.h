// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace fmmformer {

/// -log softmax(hidden weight^T + bias)[target] of every token, without ever holding all logits:
/// tokens go through in chunks, and backward computes a chunk's logits again.
/// hidden [T, D], weight [C, D], bias [C], targets int64 [T] in 0..C-1; returns [T] in fp32 (fp64
/// for fp64). Differentiable in hidden, weight and bias. Memory O(chunk C), chunk C <= 2^24 (2^26
/// on a GPU in half precision). The same bits in every run.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                const at::Tensor& bias, const at::Tensor& targets);

}  // namespace fmmformer
