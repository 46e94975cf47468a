// SPDX-License-Identifier: Apache-2.0
// Launches of the sweeps whose thread blocks have whole sequences.
#pragma once

#include "attention/fmm/cuda/sweep.h"

namespace fmmformer::cuda::whole {

constexpr int kDim = 16;                        // channels of a head
constexpr int kTokens = 32;                     // of a warp
constexpr int kMostWarps = 8;                   // of a block
constexpr int kLongest = kMostWarps * kTokens;  // sequence
constexpr int kFarthest = 32;                   // key before a query that its band may see

struct Launcher {
  /// That a block takes at most, of both kernels.
  static int shared_bytes(const SweepArgs& args);
  /// There are no segments, so there is nothing to sum.
  static cudaError_t sum_states(const SweepArgs&, bool, cudaStream_t) { return cudaSuccess; }
  static cudaError_t forward_sweep(const SweepArgs& args, cudaStream_t stream);
  /// All of backward: dq, dk, dv and weight_sums.
  static cudaError_t query_sweep(const SweepArgs& args, cudaStream_t stream);
  static cudaError_t key_sweep(const SweepArgs&, cudaStream_t) { return cudaSuccess; }

  /// Bytes of chunk_states, where forward leaves tickets for backward's blocks: see
  /// weight_sums.cuh.
  static int64_t ticket_bytes(const SweepArgs& args);
  /// Whether query_sweep, given tickets, makes the weights' gradients as well.
  static bool reduces_weight_sums(const SweepArgs& args);
};

/// What a pass carries, as PassShape says it of the other kernels.
struct PassShape {
  static constexpr int kValueDim = kDim, kChunk = kLongest;
  static constexpr int maps(int) { return kMapsAtOnce; }
  static constexpr int blocks(int, int, bool) { return 1; }  // sequences are never cut
};

}  // namespace fmmformer::cuda::whole
