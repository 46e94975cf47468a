// SPDX-License-Identifier: Apache-2.0
// Launches of the sweeps that walk chunks in fp32, for causal heads of up to kDim channels; each
// size is compiled in a file of its own, and so are those with feeders.
#pragma once

#include "attention/fmm/cuda/sweep.h"

namespace fmmformer::cuda::chunks_fp32 {

constexpr int kFarthest = 32;  // tokens before a query that a band may reach

constexpr int kFedMaps = 2;  // three leave no room for the next chunk's features

enum class Sweep { kForward, kQueries, kKeys, kSumOfKeys, kSumOfQueries };

/// kFed: with warps beside the others that prepare chunks (feeder.cuh), for up to kFedMaps maps of
/// up to 64 channels on GPUs of compute capability 9.0.
template <int kDim, bool kFed = false>
struct Launcher {
  static cudaError_t sum_states(const SweepArgs& args, bool of_queries, cudaStream_t stream);
  static cudaError_t forward_sweep(const SweepArgs& args, cudaStream_t stream);
  static cudaError_t query_sweep(const SweepArgs& args, cudaStream_t stream);
  static cudaError_t key_sweep(const SweepArgs& args, cudaStream_t stream);
};

/// What a pass carries, as PassShape says it of the other kernels. A state of 128 channels fills
/// half of shared memory: there every map is a pass of its own, over chunks of half the length.
template <int kDim>
struct PassShape {
  static constexpr int kValueDim = kDim;
  static constexpr int kTiles = kDim <= 64 ? 4 : 2;  // of sixteen tokens, in a chunk
  static constexpr int kChunk = kTiles * 16;
  static constexpr int kMaps = kDim <= 64 ? 3 : 1;
  static constexpr int kSharedBytes = 227 * 1024;  // at most
  static constexpr bool kSumsInParts = true, kSumsAllMaps = kMaps == 1;
  static constexpr int maps(int) { return kMaps; }
  /// Blocks that fill a GPU: one a multiprocessor; wide heads in three rounds, so that the last
  /// one's gaps matter less.
  static constexpr int blocks(int, int, bool) { return kMultiprocessors * (kDim <= 64 ? 1 : 3); }
};

}  // namespace fmmformer::cuda::chunks_fp32
