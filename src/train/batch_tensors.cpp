// SPDX-License-Identifier: Apache-2.0
#include "train/batch_tensors.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

namespace fmmformer::train {
namespace {

template <typename T>
at::Tensor tensor_of(const std::vector<T>& values, at::IntArrayRef shape, at::ScalarType type,
                     const at::Device& device) {
  // Pinned memory lets a copy to a GPU run beside the computation.
  at::Tensor host =
      at::empty(shape, at::TensorOptions().dtype(type).pinned_memory(device.is_cuda()));
  std::memcpy(host.data_ptr(), values.data(), values.size() * sizeof(T));
  return device.is_cpu() ? host : host.to(device, /*non_blocking=*/true);
}

std::optional<at::Tensor> mask_of(const std::vector<uint8_t>& mask, at::IntArrayRef shape,
                                  const at::Device& device) {
  if (mask.empty()) return std::nullopt;
  return tensor_of(mask, shape, at::kBool, device);  // bytes 0 and 1, as a bool is stored
}

}  // namespace

BatchTensors to_tensors(const Batch& batch, const at::Device& device) {
  const std::vector<int64_t> tokens = {batch.size, batch.length};
  const std::vector<int64_t> targets =
      batch.predicts_tokens() ? tokens : std::vector<int64_t>{batch.size};
  BatchTensors result;
  result.inputs.tokens = tensor_of(batch.tokens, tokens, at::kLong, device);
  result.inputs.token_mask = mask_of(batch.token_mask, tokens, device);
  if (batch.is_pair()) {
    result.inputs.other_tokens = tensor_of(batch.other_tokens, tokens, at::kLong, device);
    result.inputs.other_token_mask = mask_of(batch.other_token_mask, tokens, device);
  }
  result.targets = tensor_of(batch.targets, targets, at::kLong, device);
  result.counted = std::ssize(batch.targets);
  if (!batch.target_mask.empty()) {
    std::vector<float> weights(batch.target_mask.begin(), batch.target_mask.end());
    result.weights = tensor_of(weights, targets, at::kFloat, device);
    result.counted = std::ranges::count(batch.target_mask, 1);
  }
  result.tokens = batch.size * batch.length * (batch.is_pair() ? 2 : 1);
  return result;
}

}  // namespace fmmformer::train
