// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/nn/decoding_memory.h"

#include <ATen/ATen.h>

namespace fmmformer {

AttentionState& DecodingMemory::layer(int64_t number) {
  const auto index = static_cast<size_t>(number);
  if (layers.size() <= index) layers.resize(index + 1);
  return layers[index];
}

int64_t DecodingMemory::bytes() const {
  int64_t sum = 0;
  const auto add = [&](std::initializer_list<at::Tensor> tensors) {
    for (const at::Tensor& tensor : tensors) sum += static_cast<int64_t>(tensor.nbytes());
  };
  for (const auto& [fields, fast] : layers) {
    if (fields) {
      add({fields->keys, fields->values, fields->live, fields->far_sums, fields->far_key_sums,
           fields->position});
    }
    if (fast) add({fast->memory, fast->key_sums, fast->tokens});
  }
  return sum;
}

}  // namespace fmmformer
