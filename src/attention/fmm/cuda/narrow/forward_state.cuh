// SPDX-License-Identifier: Apache-2.0
// The far fields' state in forward: sums over tokens of (feature row) x (value row, 1), which are
// products of the warpgroup. One has 64 rows, the channels of two maps, and forty columns: v's, and
// 1 and 0 in turns, whose product is the sums of feature rows. A warp has sixteen channels of
// either pair of maps; of the last pair, half where the number of maps is odd. Rounded, all of it
// is an operand in shared memory, [maps][v's channels and eight more][features].
#pragma once

#include "attention/fmm/cuda/narrow/sequence.cuh"

namespace fmmformer::cuda::narrow {

/// Rows of v beside ones, as an operand of forty columns; to the next tile of v, while the ones
/// stay where they are.
template <typename G>
__device__ __forceinline__ uint64_t values_and_ones(const Sequence<G>& at) {
  const uint32_t values = at.band_chunk(1, 0);
  return with_columns_of(rows_operand(values), values, kMemory + G::kUnits);
}
constexpr int64_t kToNextValues = (kTileBytes >> 4) - (int64_t(kTileBytes >> 4) << 16);

template <typename G>
struct ForwardState {
  static constexpr int kPairs = (G::kMaps + 1) / 2;  // of maps
  Rows sums[kPairs];
  float of_rows[kPairs][4];  // of feature rows: [0] and [2] are of channels g and g + 8

  __device__ __forceinline__ ForwardState() {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      clear(sums[i]);
#pragma unroll
      for (int j = 0; j < 4; ++j) of_rows[i][j] = 0.f;
    }
  }
  /// Begins to add the chunk's features and its rows of v.
  __device__ __forceinline__ void begin(const Sequence<G>& at) {
    const uint64_t values = values_and_ones(at);
    const uint32_t features = at.features(0);
    const uint64_t keys = with_columns_of(rows_operand(features), features, features + kChunkBytes);
    begin_warpgroup_products();
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t)
        begin_turned_40(sums[i], of_rows[i], keys + i * 2 * kChunkStep + t * (kTileBytes >> 4),
                        values + t * kToNextValues);
    }
    commit_warpgroup_products();
  }
  __device__ __forceinline__ void finish() {
    await_committed_products();
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      arrived(sums[i]);
      asm volatile(""
                   : "+f"(of_rows[i][0]), "+f"(of_rows[i][1]), "+f"(of_rows[i][2]),
                     "+f"(of_rows[i][3])::"memory");
    }
  }
  /// Of the i-th half: the map; the block of sixteen of its channels.
  static __device__ __forceinline__ int map(const Sequence<G>& at, int i) {
    return i * 2 + at.warp / 2;
  }
  static __device__ __forceinline__ int block(const Sequence<G>& at) { return at.warp % 2; }

  /// Writes it as an operand. Barriers before and after are the caller's, and show_to_warpgroup.
  __device__ __forceinline__ void show(const Sequence<G>& at) const {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      if (map(at, i) >= G::kMaps) break;
      const int place = G::kStates + map(at, i) * G::kStateBytes;
#pragma unroll
      for (int s = 0; s < kBlocks; ++s) {
        const Fragment f = rounded(sums[i][s]);
        store_turned_matrix(kMemory + place + s * kTileBytes + (by_row(at.lane) ^ block(at) * 32),
                            f);
      }
      // As two numbers, the second what rounding the first took away, in rows of their own: four
      // times, so that every lane of four finds a product with them among its columns.
      const uint32_t t = at.quad(), rows = place + (kDim + 2 * t) * kRowBytes + at.row(0) * 2;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float sum = of_rows[i][2 * r];
        const Elem high = Elem(sum);
        Elem* to = shared_at<Elem>(rows + (((block(at) * 2 + r) ^ t) << 4));
        to[0] = high, to[kDim] = Elem(sum - float(high));
      }
    }
  }
  /// The state after the last token, to args.made: [pairs][maps][D][Dv] and [D].
  __device__ void store(const Sequence<G>& at) const {
    const cuda::States& made = at.args.made;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      if (map(at, i) >= G::kMaps) break;
      const int64_t entry = (int64_t(at.pair) * made.maps + map(at, i)) * kDim;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int64_t feature = entry + block(at) * kBlockDim + at.row(2 * r);
#pragma unroll
        for (int j = 0; j < kBlocks * 4; ++j)
          made.sums[feature * made.row_length + j / 2 * 8 + at.quad() * 2 + j % 2] =
              sums[i][j / 4][j / 2 % 2][2 * r + j % 2];
        if (at.quad() == 0) made.key_sums[feature] = of_rows[i][2 * r];
      }
    }
  }
};

}  // namespace fmmformer::cuda::narrow
