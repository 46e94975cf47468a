// SPDX-License-Identifier: Apache-2.0
// Batches from host memory to fixed places on the GPU.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAStream.h>

#include <array>

#include "train/step_inputs.h"

namespace fmmformer::train::cuda {

/// Sends steps of one layout. Each goes through pinned memory and over the bus on a stream of its
/// own, while the GPU still computes the step before; the current stream then moves it to where
/// inputs() look. Several sets of buffers take turns, so that the host only waits when it is that
/// many steps ahead.
class PinnedFeed {
 public:
  /// Waits for the current stream once, whose freed memory the buffers may get.
  PinnedFeed(StepLayout layout, const at::Device& device);
  /// Waits for what is under way.
  ~PinnedFeed();
  PinnedFeed(const PinnedFeed&) = delete;
  PinnedFeed& operator=(const PinnedFeed&) = delete;

  /// What the current stream does after this call finds the step in inputs().
  void send(const StepBatches& batches, const StepNumbers& numbers);

  const StepLayout& layout() const { return layout_; }
  const StepInputs& inputs() const { return inputs_; }

 private:
  struct Slot {
    at::Tensor pinned;         // host
    at::Tensor staged;         // device
    at::cuda::CUDAEvent sent;  // pinned may be written again
    at::cuda::CUDAEvent staged_is_free;
  };

  StepLayout layout_;
  c10::cuda::CUDAStream copies_;
  std::array<Slot, 3> slots_;  // one on the bus, one waiting for the GPU, one being written
  size_t next_ = 0;
  at::Tensor block_;  // what inputs_ looks into
  StepInputs inputs_;
};

}  // namespace fmmformer::train::cuda
