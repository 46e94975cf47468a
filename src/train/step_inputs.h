// SPDX-License-Identifier: Apache-2.0
// What a training step reads beside the weights: its batch and the numbers that change from step to
// step. All of it lies in one block of memory, so that it goes to a device in one copy, and at
// places that depend on the shapes alone, so that a captured graph finds it there again.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fmmformer/core/batch.h"
#include "fmmformer/models/batch_tensors.h"
#include "train/optimizer_math.h"

namespace fmmformer::train {

/// The parts that a step's batch is computed in; one unless train.accumulate says otherwise.
using StepBatches = std::vector<Batch>;

/// What else a step needs to know.
struct StepNumbers {
  std::vector<int64_t> dropout_seeds;  // one a part
  float counted = 1;                   // targets that the loss is averaged over
  PackedFactors update = {};           // Optimizer::count_step
};

/// Both as tensors on one device.
struct StepInputs {
  std::vector<BatchTensors> parts;
  std::vector<at::Tensor> dropout_seeds;  // int64 [1] each
  at::Tensor counted;                     // fp32 scalar
  at::Tensor update;                      // fp64 [kFactorCount]
};

/// Where everything lies in the block: a function of the batches' shapes.
class StepLayout {
 public:
  /// Throws c10::ValueError when an array does not fit its batch's size and length.
  explicit StepLayout(const StepBatches& batches);

  int64_t bytes() const { return bytes_; }
  /// Fills a block in host memory. `batches` must have the shapes that the layout was made for.
  void write(const StepBatches& batches, const StepNumbers& numbers, void* block) const;
  /// Views into a block, a uint8 tensor [bytes()] on any device.
  StepInputs views(const at::Tensor& block) const;

  /// "2 x [64, 512]": parts, size and length.
  std::string text() const;
  friend bool operator==(const StepLayout&, const StepLayout&) = default;

 private:
  struct Field {
    at::ScalarType type = at::ScalarType::Undefined;  // Undefined: there is none
    std::vector<int64_t> sizes;
    int64_t offset = 0;
    friend bool operator==(const Field&, const Field&) = default;
  };
  struct Part {
    int64_t size = 0, length = 0;
    Field tokens, token_mask, other_tokens, other_token_mask, targets, target_mask, seed;
    friend bool operator==(const Part&, const Part&) = default;
  };

  Field place(at::ScalarType type, std::vector<int64_t> sizes);
  Part place_part(const Batch& batch);
  static at::Tensor view(const at::Tensor& block, const Field& field);

  std::vector<Part> parts_;
  Field counted_, update_;
  int64_t bytes_ = 0;
};

}  // namespace fmmformer::train
