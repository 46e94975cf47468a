// SPDX-License-Identifier: Apache-2.0
// Launches of the sweeps whose thread blocks have whole sequences, for heads of kDim channels in
// bf16; each size is compiled in a file of its own.
#pragma once

#include "attention/fmm/cuda/sweep.h"

namespace fmmformer::cuda::whole {

constexpr int kLongest = 512;   // sequence
constexpr int kFarthest = 32;   // key before a query that its band may see
/// Warps that a block has at most, and blocks that registers leave room for on a multiprocessor.
constexpr int most_warps(int dim) { return dim <= 16 ? 8 : 16; }
#ifndef GB_B
#define GB_B 3
#define GB_F 3
#endif
constexpr int blocks_at_once(int dim, bool backward) { return dim > 16 ? 1 : backward ? GB_B : GB_F; }

template <int kDim>
struct Launcher {
  /// That a block takes at most, of any sweep.
  static int shared_bytes(const SweepArgs& args);
  /// There are no segments, so there is nothing to sum.
  static cudaError_t sum_states(const SweepArgs&, bool, cudaStream_t) { return cudaSuccess; }
  static cudaError_t forward_sweep(const SweepArgs& args, cudaStream_t stream);
  /// All of backward: dq, dk, dv and weight_sums.
  static cudaError_t query_sweep(const SweepArgs& args, cudaStream_t stream);
  static cudaError_t key_sweep(const SweepArgs&, cudaStream_t) { return cudaSuccess; }
};

/// What a pass carries, as PassShape says it of the other kernels.
template <int kDim>
struct PassShape {
  static constexpr int kValueDim = kDim, kChunk = kLongest;
  static constexpr int maps(int) { return kMapsAtOnce; }
  static constexpr int blocks(int, int, bool) { return 1; }  // sequences are never cut
};

}  // namespace fmmformer::cuda::whole
