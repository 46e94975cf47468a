// SPDX-License-Identifier: Apache-2.0
// The far fields' state backwards: sums over tokens of (value row) x (feature row) and of feature
// rows alone.
// Every warp has the sums of sixteen of v's channels with half of all maps' feature channels, fp32,
// in registers; rounded, all of them are an operand in shared memory, [maps][v's
// channels][features].
#pragma once

#include "attention/fmm/cuda/narrow/sequence.cuh"

namespace fmmformer::cuda::narrow {

template <typename G>
struct State {
  Block sums[G::kMaps];
  float of_rows = 0.f;  // of feature rows: thread map * 32 + channel has one

  __device__ __forceinline__ State() {
#pragma unroll
    for (int i = 0; i < G::kMaps; ++i) clear(sums[i]);
  }
  /// Of v's channels; of features: the i-th block of sixteen.
  static __device__ __forceinline__ int value_block(const Sequence<G>& at) { return at.warp % 2; }
  static __device__ __forceinline__ int feature_block(const Sequence<G>& at, int i) {
    return at.warp / 2 * G::kMaps + i;
  }
  /// Adds the chunk: its rows of v or grad_out, and its features.
  __device__ __forceinline__ void add(const Sequence<G>& at, uint32_t values) {
    const uint32_t left = values + (by_column(at.lane) ^ value_block(at) * 32);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const Fragment v = load_turned_matrix(left + t * kTileBytes);
#pragma unroll
      for (int i = 0; i < G::kMaps; ++i) {
        const int block = feature_block(at, i);
        const uint32_t tile = at.features(block / 2) + t * kTileBytes;
        add_product(sums[i], v,
                    of_right(load_turned_matrix(tile + (by_row(at.lane) ^ block % 2 * 32))));
      }
    }
    if (threadIdx.x < G::kMaps * kDim) {
      const float* of_tiles = shared_at<float>(G::kTileSums) + threadIdx.x;
#pragma unroll
      for (int t = 0; t < kTiles; ++t) of_rows += of_tiles[t * G::kMaps * kDim];
    }
  }
  /// Writes it as an operand. Barriers before and after are the caller's.
  __device__ __forceinline__ void show(const Sequence<G>& at) {
#pragma unroll
    for (int i = 0; i < G::kMaps; ++i) {
      const int block = feature_block(at, i);
      store_matrix(
          at.state(block / 2) + value_block(at) * kTileBytes + (by_row(at.lane) ^ block % 2 * 32),
          rounded(sums[i]));
    }
    if (threadIdx.x < G::kMaps * kDim) at.sums(0)[threadIdx.x] = of_rows;
    show_to_warpgroup();
  }
};

/// Sums of the feature rows of the warp's tile, each times a number: `numbers` has them in every
/// row. For all to see.
template <typename G>
__device__ __forceinline__ void sum_tile(const Sequence<G>& at, int map, const Fragment& numbers) {
  const uint32_t tile = at.features(map) + at.warp * kTileBytes;
  float* to = shared_at<float>(G::kTileSums) + (at.warp * G::kMaps + map) * kDim + lane_id() * 2;
#pragma unroll
  for (int s = 0; s < kBlocks; ++s) {
    Block c;
    begin_product(c, numbers, of_right(load_turned_matrix(tile + (by_row(at.lane) ^ s * 32))));
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      if (lane_id() < 4)
        *reinterpret_cast<float2*>(to + s * kBlockDim + n * 8) = make_float2(c[n][0], c[n][1]);
    }
  }
}

}  // namespace fmmformer::cuda::narrow
