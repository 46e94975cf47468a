// SPDX-License-Identifier: Apache-2.0
// Fast-weight attention in plain torch operations: what a user would write.
#pragma once

#include "fmmformer/attention/fast_weight_attention.h"

namespace fmmformer::bench {

/// Token by token in the inputs' own type: says how much error that type makes unavoidable.
at::Tensor plain_torch_fast_weight(const FastWeightInputs& inputs,
                                   const FastWeightOptions& options);

/// The fast way to write it: everything that does not need the state for all chunks at once, a
/// batched triangular solve included, then a loop over chunks with four products each. Knows no
/// mask.
at::Tensor chunk_loop(const FastWeightInputs& inputs, const FastWeightOptions& options,
                      int64_t chunk);

}  // namespace fmmformer::bench
