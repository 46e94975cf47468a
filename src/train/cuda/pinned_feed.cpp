// SPDX-License-Identifier: Apache-2.0
#include "train/cuda/pinned_feed.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>

namespace fmmformer::train::cuda {

using c10::cuda::CUDAStream;
using c10::cuda::getCurrentCUDAStream;

PinnedFeed::PinnedFeed(StepLayout layout, const at::Device& device)
    : layout_(std::move(layout)),
      copies_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())) {
  const auto bytes = at::TensorOptions().dtype(at::kByte);
  for (Slot& slot : slots_) {
    slot.pinned = at::empty({layout_.bytes()}, bytes.pinned_memory(true));
    slot.staged = at::empty({layout_.bytes()}, bytes.device(device));
  }
  block_ = at::empty({layout_.bytes()}, bytes.device(device));
  inputs_ = layout_.views(block_);
  getCurrentCUDAStream(device.index()).synchronize();
}

PinnedFeed::~PinnedFeed() {
  for (Slot& slot : slots_) {
    // A GPU that failed has been reported already; nothing may escape from here.
    try {
      slot.sent.synchronize();
      slot.staged_is_free.synchronize();
    } catch (const c10::Error&) {
    }
  }
}

void PinnedFeed::send(const StepBatches& batches, const StepNumbers& numbers) {
  Slot& slot = slots_[next_++ % slots_.size()];
  const CUDAStream current = getCurrentCUDAStream(block_.device().index());
  slot.sent.synchronize();
  layout_.write(batches, numbers, slot.pinned.mutable_data_ptr());
  {
    const c10::cuda::CUDAStreamGuard on_the_bus(copies_);
    slot.staged_is_free.block(copies_);
    slot.staged.copy_(slot.pinned, /*non_blocking=*/true);
    slot.sent.record(copies_);
  }
  slot.sent.block(current);
  block_.copy_(slot.staged, /*non_blocking=*/true);
  slot.staged_is_free.record(current);
}

}  // namespace fmmformer::train::cuda
