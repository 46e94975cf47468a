// SPDX-License-Identifier: Apache-2.0
// An optimizer step over many tensors in one launch. No torch here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "train/optimizer_loop.h"

namespace fmmformer::train::cuda {

/// Elements of a thread block's share: 16 for each of 256 threads, so that tensors of a few hundred
/// elements do not waste a block and large ones fill the GPU.
inline constexpr int64_t kShareElements = 4096;

/// Tensors of one launch: they travel as an argument of the kernel, of which there are 4 kB.
inline constexpr int kTensorsPerLaunch = 64;

/// As in UpdateBlock (optimizer_loop.h), contiguous.
struct TensorSlot {
  void* parameter = nullptr;
  const void* gradient = nullptr;
  void* weight = nullptr;
  void* first_moment = nullptr;
  void* second_moment = nullptr;
  int64_t elements = 0;
};

/// Tensors of one type, and the shares that they are cut into: tensor i has those from
/// first_share[i] to first_share[i + 1].
struct TensorGroup {
  TensorSlot slots[kTensorsPerLaunch];
  int32_t first_share[kTensorsPerLaunch + 1] = {};
  int tensors = 0;

  bool is_full() const { return tensors == kTensorsPerLaunch; }
  int32_t shares() const { return first_share[tensors]; }
  void add(const TensorSlot& slot) {
    slots[tensors] = slot;
    const int64_t shares = (slot.elements + kShareElements - 1) / kShareElements;
    first_share[tensors + 1] = first_share[tensors] + static_cast<int32_t>(shares);
    ++tensors;
  }
};

/// scales[i] = what brings the gradient of tensor i down to max_norm. `sums` holds one number a
/// share. Sums are taken in a fixed order: the same bits every time.
cudaError_t clip_scales(ElementType type, const TensorGroup& group, double max_norm, double* sums,
                        double* scales, cudaStream_t stream);

/// Advances all tensors. `factors` (PackedFactors) and `scales` (one a tensor; null: 1) are read
/// from device memory when the kernel runs.
cudaError_t update_tensors(ElementType type, const TensorGroup& group, const double* factors,
                           const double* scales, cudaStream_t stream);

}  // namespace fmmformer::train::cuda
