// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fmmformer/attention/fast_weight_attention.h"

namespace fmmformer {

/// The truth that every kernel is held against: fast-weight attention from its formula, token by
/// token and in double precision. Same arguments, shapes and meaning as fast_weight_attention;
/// returns double. Plain differentiable torch operations, so autograd gives the gradients, and
/// keeps a state for every token. Shares no code with the kernels, feature maps included.
at::Tensor fast_weight_attention_reference(const FastWeightInputs& inputs,
                                           const FastWeightOptions& options);

}  // namespace fmmformer
