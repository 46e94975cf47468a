// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/nn/decoding_memory.h"

#include <ATen/ATen.h>

namespace fmmformer {

int64_t DecodingMemory::bytes() const {
  int64_t sum = 0;
  for (const auto& state : layers) {
    if (!state) continue;
    for (const at::Tensor& tensor : {state->keys, state->values, state->live, state->far_sums,
                                     state->far_key_sums, state->position}) {
      sum += static_cast<int64_t>(tensor.nbytes());
    }
  }
  return sum;
}

}  // namespace fmmformer
