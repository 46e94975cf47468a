// SPDX-License-Identifier: Apache-2.0
// Launches of the sweeps of narrow/ in fp32: thread blocks that walk a whole head of 32 channels in
// chunks of 64 tokens, with products of a warpgroup (ADR 27). GPUs of compute capability 9.0 alone.
#pragma once

#include "attention/fmm/cuda/narrow/launcher.cuh"

namespace fmmformer::cuda::narrow_fp32 {

using narrow::kDim, narrow::kRows, narrow::kLongest;

constexpr int kBlocksAtOnce = 2;      // of a multiprocessor
constexpr int kSharedBytes = 115712;  // that each of those may have
constexpr int kFewestPairs = 128;     // below, strips of a sequence fill the GPU better

struct Launcher {
  /// There are no segments, so there is nothing to sum.
  static cudaError_t sum_states(const SweepArgs&, bool, cudaStream_t) { return cudaSuccess; }
  static cudaError_t forward_sweep(const SweepArgs& args, cudaStream_t stream);
  static cudaError_t query_sweep(const SweepArgs& args, cudaStream_t stream);
  static cudaError_t key_sweep(const SweepArgs& args, cudaStream_t stream);
};

using PassShape = narrow::PassShape;

}  // namespace fmmformer::cuda::narrow_fp32
