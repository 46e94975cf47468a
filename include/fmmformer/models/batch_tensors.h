// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "fmmformer/core/batch.h"
#include "fmmformer/models/model.h"

namespace fmmformer {

/// A batch on a device, ready for Model::losses.
struct BatchTensors {
  ModelInputs inputs;
  at::Tensor targets;                     // int64 [size] or [size, length]
  std::optional<at::Tensor> target_mask;  // bool, like targets; none: all count
};

/// Copies the batch to the device; through pinned memory and without waiting when that is a GPU.
/// Throws c10::ValueError when an array does not fit size and length.
BatchTensors batch_tensors(const Batch& batch, const at::Device& device);

/// Inputs cut to their first `length` tokens, where they have more.
ModelInputs first_tokens(ModelInputs inputs, int64_t length);

}  // namespace fmmformer
