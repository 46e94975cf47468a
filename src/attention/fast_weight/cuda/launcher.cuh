// SPDX-License-Identifier: Apache-2.0
// Launches of the sweeps for one kind of arithmetic and one size of states; each size is compiled
// in files of its own.
#pragma once

#include "attention/fast_weight/cuda/sweep.h"
#include "attention/fast_weight/cuda/tf32.cuh"

namespace fmmformer::cuda::fast_weight {

inline constexpr int kGroup = 4;  // chunks, and warps, of a thread block

/// Walks over states with up to kDim channels of keys.
template <typename Math, int kDim>
struct WalkLauncher {
  static cudaError_t forward_sweep(const SweepArgs& args, const Limits&, cudaStream_t stream);
  static cudaError_t write_sweep(const SweepArgs& args, const Limits&, cudaStream_t stream);
  static cudaError_t solve_sweep(const SweepArgs& args, const Limits&, cudaStream_t stream);
  static cudaError_t transition_sweep(const SweepArgs& args, bool of_gradients, const Limits&,
                                      cudaStream_t stream);
};

/// ... with up to kDim channels of values. The widest also serves more than 128 channels of keys.
template <typename Math, int kDim>
struct GradientLauncher {
  static constexpr int kMaxThreads = kDim > 128 ? 512 : 256;
  static cudaError_t query_sweep(const SweepArgs& args, const Limits&, cudaStream_t stream);
  static cudaError_t key_sweep(const SweepArgs& args, const Limits&, cudaStream_t stream);
};

/// The chunks that a thread block takes at a time: kGroup, or as many as fit; 0 if none does.
template <typename Bytes>
int group_that_fits(const Limits& limits, const Bytes& bytes_of) {
  int group = kGroup;
  while (group > 0 && bytes_of(group) > limits.shared_bytes) --group;
  return group;
}

template <typename Kernel>
cudaError_t launch(Kernel* kernel, const SweepArgs& args, int group, int64_t bytes, dim3 blocks,
                   int threads, cudaStream_t stream) {
  if (blocks.x == 0) return cudaSuccess;
  if (group == 0) return cudaErrorInvalidConfiguration;
  // Every time: the attribute belongs to the device, and there may be several.
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error != cudaSuccess) return error;
  kernel<<<blocks, threads, bytes, stream>>>(args, group);
  return cudaGetLastError();
}

}  // namespace fmmformer::cuda::fast_weight
