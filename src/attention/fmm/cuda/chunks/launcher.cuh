// SPDX-License-Identifier: Apache-2.0
// Launches of the sweeps that walk chunks, for heads of up to kDim channels in bf16 (see
// shape.cuh); each size is compiled in a file of its own.
#pragma once

#include "attention/fmm/cuda/sweep.h"

namespace fmmformer::cuda::chunks {

constexpr int kChunk = 64;     // tokens
constexpr int kFarthest = 32;  // tokens before a query that a band may reach

enum class Sweep { kForward, kQueries, kKeys, kSumOfKeys, kSumOfQueries };

/// Blocks that registers and shared memory leave room for on a multiprocessor.
constexpr int blocks_at_once(int dim) { return dim > 64 ? 1 : 2; }

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
  static constexpr int kValueDim = kDim, kChunk = chunks::kChunk;
  static constexpr int kMaps = kDim <= 64 ? 3 : 2;  // whose states registers have room for
  static constexpr int kSharedBytes = (kDim <= 64 ? 113 : 227) * 1024;  // at most
  static constexpr int maps(int) { return kMaps; }
  /// Blocks that fill a GPU; wide heads in three rounds, so that the last one's gaps matter less.
  static constexpr int blocks(int, int, bool) {
    return kMultiprocessors * (kDim <= 64 ? blocks_at_once(kDim) : 3);
  }
};

}  // namespace fmmformer::cuda::chunks
