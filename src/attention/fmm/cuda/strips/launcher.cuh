// SPDX-License-Identifier: Apache-2.0
// Launches of the sweeps whose warps own strips, for heads of kDim channels in bf16 (Bf16) or fp32
// (Tf32x3); each type and size is compiled in a file of its own.
#pragma once

#include "attention/fmm/cuda/mma.cuh"
#include "attention/fmm/cuda/sweep.h"

namespace fmmformer::cuda::strips {

constexpr int kMostStrips = 4;  // of a block, but for clusters
constexpr int kMostInCluster = 16;
constexpr int kSharedOfCluster = 227 << 10;  // bytes that a block of a cluster may have
constexpr int kMostGroups = 3;               // of sixteen columns that a band may touch
constexpr int kSlots = 4;  // tiles of sixteen tokens in a ring: a band of three, the next one
constexpr int kMostHalo = (kSlots - 2) * 16;  // tokens beside a tile that its ring has room for

/// The columns that sixteen rows see, in eights.
constexpr int band_eights(int left, int right) { return (left + 7) / 8 + 2 + (right + 7) / 8; }

/// Whether causal calls are walked by teams: see teams.cuh.
template <typename Math>
constexpr bool walks_in_teams(int dim) {
  return sizeof(typename Math::Elem) == 4 && dim == 32;
}
constexpr int kTeamsAtOnce = 4;  // blocks of a multiprocessor; 512 pairs are then one wave

enum class Sweep { kForward, kQueries, kKeys, kBoth, kSumOfKeys, kSumOfQueries };
/// Blocks that registers leave room for on a multiprocessor: as many as run without spilling, or
/// nearly, since a warp's stack finds little room beside so much shared memory. A causal state is
/// fp32 and in registers; a two-sided one is in shared memory, but its queries are summed.
template <typename Math>
constexpr int blocks_at_once(int dim, int maps, Sweep sweep, bool causal) {
  const bool backward = sweep == Sweep::kQueries || sweep == Sweep::kKeys || sweep == Sweep::kBoth;
  if (sizeof(typename Math::Elem) == 4) return dim <= 16 && !backward ? 3 : 2;
  if (dim <= 16) return maps == 3 && backward ? 3 : 4;
  if (backward) return maps == 1 ? 4 - causal : maps == 2 ? 3 - causal : 2;
  if (sweep == Sweep::kForward && causal) return 5 - maps;
  return maps == 3 ? 3 : 4;
}

/// Strips of a block. One of a cluster has a multiprocessor for itself: where a multiprocessor
/// holds several, clusters of six do not find places for all blocks that there is room for.
template <typename Math>
constexpr int most_strips(int dim, int maps, Sweep sweep, bool in_cluster) {
  return kMostStrips * (in_cluster ? blocks_at_once<Math>(dim, maps, sweep, /*causal=*/false) : 1);
}

template <typename Math, int kDim>
struct Launcher {
  static cudaError_t sum_states(const SweepArgs& args, bool of_queries, cudaStream_t stream);
  static cudaError_t forward_sweep(const SweepArgs& args, cudaStream_t stream);
  static cudaError_t query_sweep(const SweepArgs& args, cudaStream_t stream);
  static cudaError_t key_sweep(const SweepArgs& args, cudaStream_t stream);
};

/// What a pass carries, as PassShape says it of the other kernels.
template <typename Math, int kDim>
struct PassShape {
  static constexpr int kValueDim = kDim, kChunk = 64;
  // What a block has at most: twelve tiles, numbers and sums a warp, two-sided states and ranges.
  static constexpr int kElem = sizeof(typename Math::Elem), kRow = kElem * kDim + (4 - kElem) * 8;
  static constexpr int kSharedBytes =
      kMostStrips * (12 * 16 * kRow + 2240 + (kMapsAtOnce + 8 * (kMapsAtOnce + 1)) * kDim * 4) +
      kMapsAtOnce * kDim * (kRow + 4) + (kMapsAtOnce + 1) * kDim * 6 + kMostInCluster * 8;
  static constexpr int maps(int) { return kMapsAtOnce; }
  /// Blocks that fill a GPU at once.
  static constexpr int blocks(int, int maps, bool) {
    return kMultiprocessors * blocks_at_once<Math>(kDim, maps, Sweep::kQueries, /*causal=*/false);
  }
};

}  // namespace fmmformer::cuda::strips
