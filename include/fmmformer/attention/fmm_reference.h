// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fmmformer/attention/fmm_attention.h"

namespace fmmformer {

/// The truth that every kernel is held against: FMM attention from its formula, dense and in double
/// precision. Same arguments, shapes and meaning as fmm_attention; returns double. Plain
/// differentiable torch operations, so autograd gives the gradients. Time and memory O(N^2). Shares
/// no code with the kernels, feature maps and dropout included.
at::Tensor fmm_attention_reference(const AttentionInputs& inputs, const BlendWeights& weights,
                                   const FmmOptions& options);

}  // namespace fmmformer
