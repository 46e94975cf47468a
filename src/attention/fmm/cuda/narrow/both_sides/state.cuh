// SPDX-License-Identifier: Apache-2.0
// The state after a chunk: sums over the queries of later ones.
#pragma once

#include "attention/fmm/cuda/narrow/both_sides/shape.cuh"
#include "attention/fmm/cuda/narrow/state.cuh"

namespace fmmformer::cuda::narrow::both_sides {

/// Of (grad_out row) x (feature row), as State has them, and of feature rows times dots.
template <typename G>
struct StateAfter {
  using Share = State<G>;
  Block sums[G::kMaps];

  __device__ __forceinline__ StateAfter() {
#pragma unroll
    for (int i = 0; i < G::kMaps; ++i) clear(sums[i]);
  }
  __device__ __forceinline__ void add(const Sequence<G>& at) {
    const uint32_t left = at.own_chunk(1, 0) + (by_column(at.lane) ^ Share::value_block(at) * 32);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const Fragment grad = load_turned_matrix(left + t * kTileBytes);
#pragma unroll
      for (int i = 0; i < G::kMaps; ++i)
        add_product(sums[i], grad, features(at, Share::feature_block(at, i), t));
    }
    // Two warps have the same features, and share them out.
#pragma unroll
    for (int i = 0; i < G::kMaps; ++i) {
      if ((i + at.warp) % 2 == 0) add_dots(at, Share::feature_block(at, i));
    }
  }
  /// Writes it as an operand, when nobody reads the one before. show_to_warpgroup and a barrier
  /// must follow.
  __device__ __forceinline__ void show(const Sequence<G>& at) const {
#pragma unroll
    for (int i = 0; i < G::kMaps; ++i) {
      const int block = Share::feature_block(at, i);
      store_matrix(at.state(block / 2) + Share::value_block(at) * kTileBytes +
                       (by_row(at.lane) ^ block % 2 * 32),
                   rounded(sums[i]));
    }
  }

 private:
  static __device__ __forceinline__ Fragment features(const Sequence<G>& at, int block, int tile) {
    const uint32_t rows = query_features(at, block / 2) + tile * kTileBytes;
    return of_right(load_turned_matrix(rows + (by_row(at.lane) ^ block % 2 * 32)));
  }
  /// The sums of sixteen channels, from this chunk's place to the one before.
  static __device__ __forceinline__ void add_dots(const Sequence<G>& at, int block) {
    const int channel = block * kBlockDim + at.row(0);
    const float* from = later_sums(at, at.chunk) + channel;
    float c[4] = {from[0], 0.f, from[8], 0.f};
    const uint32_t rows = query_features(at, block / 2) + (by_column(at.lane) ^ block % 2 * 32);
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
      Bf16::multiply(c, load_turned_matrix(rows + t * kTileBytes),
                     {{dot_pair(at, block / 2, t, 0), dot_pair(at, block / 2, t, 1)}});
    float* to = later_sums(at, at.chunk - 1) + channel;
    if (at.quad() == 0) to[0] = c[0], to[8] = c[2];
  }
};

}  // namespace fmmformer::cuda::narrow::both_sides
