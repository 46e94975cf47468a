// SPDX-License-Identifier: Apache-2.0
// Launches of the sweeps whose warps own strips, for heads of kDim channels in bf16; each size is
// compiled in a file of its own.
#pragma once

#include "attention/fmm/cuda/sweep.h"

namespace fmmformer::cuda::strips {

constexpr int kMostStrips = 4;  // of a block
constexpr int kMostGroups = 3;  // of sixteen columns that a band may touch

enum class Sweep { kForward, kQueries, kKeys, kSumOfKeys, kSumOfQueries };
/// Blocks that registers leave room for on a multiprocessor. A causal state is fp32 and changes; a
/// two-sided one is fixed and takes half of the registers, except where another is summed.
constexpr int blocks_at_once(int dim, int maps, Sweep sweep, bool causal) {
  if (dim <= 16) return 4;
  const bool light = sweep == Sweep::kSumOfKeys || sweep == Sweep::kSumOfQueries ||
                     (!causal && sweep == Sweep::kForward);
  return maps == 1 || light ? 4 : maps == 2 ? 3 : 2;
}

template <int kDim>
struct Launcher {
  static cudaError_t sum_states(const SweepArgs& args, bool of_queries, cudaStream_t stream);
  static cudaError_t forward_sweep(const SweepArgs& args, cudaStream_t stream);
  static cudaError_t query_sweep(const SweepArgs& args, cudaStream_t stream);
  static cudaError_t key_sweep(const SweepArgs& args, cudaStream_t stream);
};

/// What a pass carries, as PassShape says it of the other kernels.
template <int kDim>
struct PassShape {
  static constexpr int kValueDim = kDim, kChunk = 64;
  static constexpr int maps(int) { return kMapsAtOnce; }
  /// Blocks that fill a GPU at once.
  static constexpr int blocks(int, int maps, bool) {
    return kMultiprocessors * blocks_at_once(kDim, maps, Sweep::kQueries, true);
  }
};

}  // namespace fmmformer::cuda::strips
