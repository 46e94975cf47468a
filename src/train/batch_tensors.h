// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fmmformer/core/batch.h"
#include "fmmformer/models/model.h"

namespace fmmformer::train {

/// A batch on the model's device. What is predicted, and what of it counts, is beside the inputs.
struct BatchTensors {
  ModelInputs inputs;
  at::Tensor targets;   // int64 [B] or [B, N]
  at::Tensor weights;   // float, like targets: 1 counts, 0 does not; undefined: all count
  int64_t counted = 0;  // how many count
  int64_t tokens = 0;   // that the model reads, padding included
};

BatchTensors to_tensors(const Batch& batch, const at::Device& device);

}  // namespace fmmformer::train
