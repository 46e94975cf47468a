// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/models/batch_tensors.h"

#include <ATen/ATen.h>

#include <vector>

namespace fmmformer {

using at::Tensor;

namespace {

template <typename T>
Tensor tensor_of(const char* name, const std::vector<T>& values, at::IntArrayRef sizes,
                 at::ScalarType type, const at::Device& device) {
  const int64_t wanted = c10::multiply_integers(sizes);
  TORCH_CHECK_VALUE(static_cast<int64_t>(values.size()) == wanted, "batch: ", name, " has ",
                    values.size(), " entries; wanted ", wanted, " for ", sizes);
  const bool pinned = !device.is_cpu();
  Tensor host = at::empty(sizes, at::TensorOptions().dtype(type).pinned_memory(pinned));
  std::copy(values.begin(), values.end(), static_cast<T*>(host.mutable_data_ptr()));
  return pinned ? host.to(device, /*non_blocking=*/true) : host;
}

}  // namespace

BatchTensors batch_tensors(const Batch& batch, const at::Device& device) {
  const std::vector<int64_t> grid = {batch.size, batch.length};
  const auto tokens = [&](const char* name, const std::vector<int64_t>& values) {
    return tensor_of(name, values, grid, at::kLong, device);
  };
  const auto mask = [&](const char* name, const std::vector<uint8_t>& values,
                        at::IntArrayRef sizes) -> std::optional<Tensor> {
    if (values.empty()) return std::nullopt;
    return tensor_of(name, values, sizes, at::kByte, device).to(at::kBool);
  };
  BatchTensors out;
  out.inputs.tokens = tokens("tokens", batch.tokens);
  out.inputs.token_mask = mask("token_mask", batch.token_mask, grid);
  if (batch.is_pair()) {
    out.inputs.other_tokens = tokens("other_tokens", batch.other_tokens);
    out.inputs.other_token_mask = mask("other_token_mask", batch.other_token_mask, grid);
  }
  const std::vector<int64_t> sizes =
      batch.predicts_tokens() ? grid : std::vector<int64_t>{batch.size};
  out.targets = tensor_of("targets", batch.targets, sizes, at::kLong, device);
  out.target_mask = mask("target_mask", batch.target_mask, sizes);
  return out;
}

ModelInputs first_tokens(ModelInputs inputs, int64_t length) {
  const auto shorten = [&](const at::Tensor& tensor) {
    return tensor.size(1) > length ? tensor.slice(1, 0, length) : tensor;
  };
  inputs.tokens = shorten(inputs.tokens);
  if (inputs.token_mask) inputs.token_mask = shorten(*inputs.token_mask);
  if (inputs.other_tokens.defined()) inputs.other_tokens = shorten(inputs.other_tokens);
  if (inputs.other_token_mask) inputs.other_token_mask = shorten(*inputs.other_token_mask);
  return inputs;
}

}  // namespace fmmformer
