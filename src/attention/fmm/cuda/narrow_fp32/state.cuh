// SPDX-License-Identifier: Apache-2.0
// The far fields' state: sums over tokens of (value row) x (feature row) and of feature rows alone.
// Every warp has the sums of sixteen of v's channels with half of all maps' feature channels, fp32,
// in registers; as pairs, all of them are an operand in shared memory, [maps][v's
// channels][features], with a power of two for every map.
#pragma once

#include "attention/fmm/cuda/narrow_fp32/rows.cuh"

namespace fmmformer::cuda::narrow_fp32 {

/// What a tile's features and its rows of v or grad_out together have been multiplied with, as a
/// shift. In the keys' sweep query features have one for every map. A warp's products with the
/// first or the second, below 2^(2 kTop + 5), times 2^(s - together) are operands for the other,
/// and then have 2^s beside what the warp's rows have: as has the state's product with those rows,
/// if the state has been multiplied with 2^s.
template <typename G>
__device__ __forceinline__ int query_shift(int map, int tile) {
  return shared_at<int>(G::kQueryShifts)[map * kTiles + tile];
}
template <typename G>
__device__ __forceinline__ int together(const Sequence<G>& at, int map, int tile) {
  return (G::kOfKeys ? query_shift<G>(map, tile) : at.band_size(0, tile).features) +
         at.band_size(1, tile).shift;
}
/// The largest s for which such operands are below 2^kTop.
template <typename G>
__device__ __forceinline__ int most_shift(const Sequence<G>& at, int map) {
  return min(min(together(at, map, 0), together(at, map, 1)),
             min(together(at, map, 2), together(at, map, 3))) -
         kDown;
}

template <typename G>
struct State {
  Block sums[G::kMaps];
  float of_rows = 0.f;  // of feature rows: lane `channel` of warp `map` has one

  __device__ __forceinline__ State() {
#pragma unroll
    for (int i = 0; i < G::kMaps; ++i) clear(sums[i]);
  }
  /// Of v's channels; of features: the i-th block of sixteen.
  static __device__ __forceinline__ int value_block(const Sequence<G>& at) { return at.warp % 2; }
  static __device__ __forceinline__ int feature_block(const Sequence<G>& at, int i) {
    return at.warp / 2 * G::kMaps + i;
  }
  /// Chunks take turns with two sets of largest numbers, one a map.
  static __device__ __forceinline__ float* maxima(int chunk) {
    return shared_at<float>(G::kStateMaxima) + (chunk & 1) * 4;
  }
  /// The shift of what show() wrote.
  static __device__ __forceinline__ int shift(int map) {
    return shared_at<int>(G::kStateShifts)[map];
  }

  /// Adds the chunk: its rows of v or grad_out, and its features.
  __device__ __forceinline__ void add(const Sequence<G>& at) {
    const uint32_t left = at.band_chunk(1, 0) + (by_column(at.lane) ^ value_block(at) * 32);
    // By one piece of code: unrolled, loads would take registers from the state.
#pragma unroll 1
    for (int t = 0; t < kTiles; ++t) {
      const Left v = load_turned_operand<Left>(left + t * kTileBytes);
#pragma unroll
      for (int i = 0; i < G::kMaps; ++i) {
        const int block = feature_block(at, i);
        const uint32_t tile = at.features(block / 2) + t * kTileBytes;
        Block part;
        clear(part);
        add_product(part, v, load_turned_operand<Right>(tile + (by_row(at.lane) ^ block % 2 * 32)));
        const float factor = power_of_2(-together(at, block / 2, t));
#pragma unroll
        for (int j = 0; j < 8; ++j) sums[i][j / 4][j % 4] += factor * part[j / 4][j % 4];
      }
    }
#pragma unroll
    for (int i = 0; i < G::kMaps; ++i) {
      float most = 0.f;
#pragma unroll
      for (int j = 0; j < 8; ++j) most = fmaxf(most, fabsf(sums[i][j / 4][j % 4]));
      most = warp_max(most);
      // Numbers that are not negative have the order of their bits.
      if (lane_id() == 0)
        atomicMax(reinterpret_cast<unsigned*>(maxima(at.chunk) + feature_block(at, i) / 2),
                  __float_as_uint(most));
    }
    if (at.warp >= G::kMaps) return;
    const float* of_tiles = shared_at<float>(G::kTileSums) + channel(at);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) of_rows += of_tiles[t * G::kMaps * kDim];
  }
  /// Writes it as an operand for the chunk at hand, whose sizes are known. Barriers
  /// before and after are the caller's.
  __device__ __forceinline__ void show(const Sequence<G>& at) const {
#pragma unroll
    for (int i = 0; i < G::kMaps; ++i) {
      const int block = feature_block(at, i);
      const int shift = min(most_shift(at, block / 2), shift_for(maxima(at.chunk + 1)[block / 2]));
      store_operand(
          at.state(block / 2) + value_block(at) * kTileBytes + (by_row(at.lane) ^ block % 2 * 32),
          split_result(sums[i], power_of_2(shift)));
      if (lane_id() == 0) shared_at<int>(G::kStateShifts)[block / 2] = shift;
    }
    if (at.warp < G::kMaps) at.sums(0)[channel(at)] = of_rows;
    if (at.warp == 0 && lane_id() < 4) maxima(at.chunk)[lane_id()] = 0.f;
    show_to_warpgroup();
  }
  /// The state after the last token, to args.made: [pairs][maps][D][Dv] and [D].
  __device__ void store(const Sequence<G>& at) const {
    const cuda::States& made = at.args.made;
#pragma unroll
    for (int i = 0; i < G::kMaps; ++i) {
      const int block = feature_block(at, i), map = block / 2;
      const int64_t entry = (int64_t(at.pair) * made.maps + map) * kDim;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int feature = block % 2 * kBlockDim + column_of(j / 4, j),
                  value = value_block(at) * kBlockDim + row_of(j % 4);
        made.sums[(entry + feature) * made.row_length + value] = sums[i][j / 4][j % 4];
      }
    }
    if (at.warp < G::kMaps)
      made.key_sums[int64_t(at.pair) * made.maps * kDim + channel(at)] = of_rows;
  }

 private:
  static __device__ __forceinline__ int channel(const Sequence<G>& at) {
    return at.warp * kDim + lane_id();
  }
};

}  // namespace fmmformer::cuda::narrow_fp32
