// SPDX-License-Identifier: Apache-2.0
// The state after a chunk: sums over the queries of later ones.
#pragma once

#include "attention/fmm/cuda/narrow/both_sides/shape.cuh"

namespace fmmformer::cuda::narrow::both_sides {

/// Of (feature row) x (grad_out row), as products of the warpgroup with 64 rows, the channels of
/// two maps (see ForwardState).
template <typename G>
struct StateAfter {
  static constexpr int kPairs = (G::kMaps + 1) / 2;  // of maps
  Rows sums[kPairs];

  /// After the last chunk there is nothing.
  __device__ __forceinline__ void begin_pair() {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) clear(sums[i]);
  }
  /// Begins to add the chunk.
  __device__ __forceinline__ void begin(const Sequence<G>& at) {
    constexpr int kTileStep = kTileBytes >> 4;
    const uint32_t features = query_features(at, 0);
    const uint64_t queries =
                       with_columns_of(rows_operand(features), features, features + kChunkBytes),
                   grads = rows_operand(at.own_chunk(1, 0));
    begin_warpgroup_products();
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
        begin_turned_32(sums[i], queries + i * 2 * kChunkStep + t * kTileStep,
                        grads + t * kTileStep);
    }
    commit_warpgroup_products();
  }
  __device__ __forceinline__ void finish() {
    await_committed_products();
#pragma unroll
    for (int i = 0; i < kPairs; ++i) arrived(sums[i]);
  }
  /// Writes it as an operand, [maps][v's channels][features], when nobody reads the one before.
  /// show_to_warpgroup and a barrier must follow.
  __device__ __forceinline__ void show(const Sequence<G>& at) const {
    const uint32_t lane = by_row(at.lane) ^ at.warp % 2 * 32;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int map = i * 2 + at.warp / 2;
      if (map >= G::kMaps) break;
#pragma unroll
      for (int s = 0; s < kBlocks; ++s)
        store_turned_matrix(at.state(map) + s * kTileBytes + lane, rounded(sums[i][s]));
    }
  }
};

}  // namespace fmmformer::cuda::narrow::both_sides
