// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fmmformer/attention/fmm_attention.h"

namespace fmmformer::bench {

/// FMM attention as the dense formula in plain torch operations, every step rounded to the inputs'
/// type: the error it makes against double is what a kernel's error is allowed to be twice of.
/// O(N^2). Dropout draws its own mask (from dropout_seed), so compare it only with itself in
/// another type.
at::Tensor plain_torch_attention(const AttentionInputs& inputs, const BlendWeights& weights,
                                 const FmmOptions& options);

}  // namespace fmmformer::bench
