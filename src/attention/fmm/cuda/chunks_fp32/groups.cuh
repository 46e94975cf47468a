// SPDX-License-Identifier: Apache-2.0
// The columns that sixteen rows see, in groups of sixteen: up to three tiles of a band, the tiles
// of the chunk before the rows' own or, where rows are keys, after it; and products with them.
#pragma once

#include "attention/fmm/cuda/chunks_fp32/state.cuh"
#include "attention/fmm/cuda/dropout.cuh"

namespace fmmformer::cuda::chunks_fp32 {

/// The band as seen from sixteen rows; group k is the tile k before the rows' own or, where rows
/// are keys, k after it.
template <Sweep kSweep>
struct Band {
  static constexpr bool kAfter = kSweep == Sweep::kKeys;
  int groups;     // none to three
  uint32_t bits;  // elements inside, eight for each group: 4 * (column / 8) + i
  float scale;    // of scores, for powers of 2
  bool drops;
  uint64_t seed;

  __device__ explicit Band(const SweepArgs& args) : bits(0) {
    groups = args.has_near ? (args.left + kBlockDim - 1) / kBlockDim + 1 : 0;
    scale = args.near_scale * kLog2E;
    drops = args.drop_below > 0;
    seed = dropout_seed(args);
    for (int i = 0; i < kBandGroups * 8; ++i) {
      const int across = column_of(i / 4 % 2, i) - row_of(i % 4);
      const int apart = i / 8 * kBlockDim + (kAfter ? across : -across);  // key to query
      if (apart >= 0 && apart <= args.left) bits |= 1u << i;
    }
    asm volatile("" : "+r"(bits));  // not to be computed again in every step
  }
  /// Of one group, those of live columns.
  __device__ __forceinline__ uint32_t inside(int group, uint32_t live) const {
    const uint32_t band = bits >> group * 8 & 0xffu;
    if (live == 0xffffu) return band;
    const uint32_t mine = live >> lane_id() % 4 * 2;
    return band & ((mine & 3) * 5 | (mine >> 8 & 3) * 0x50);
  }
};

/// How many groups of columns inside the chunk the warp's rows see.
template <typename G, Sweep kSweep>
__device__ __forceinline__ int far_groups(const Walk<G, kSweep>& walk) {
  return kSweep == Sweep::kKeys ? G::kTiles - walk.place.tile : walk.place.tile + 1;
}
/// Which tile of the chunk a group is.
template <typename G, Sweep kSweep>
__device__ __forceinline__ int tile_of_group(const Walk<G, kSweep>& walk, int k) {
  return kSweep == Sweep::kKeys ? walk.place.tile + k : walk.place.tile - k;
}
/// Calls body(k, tile of the chunk) for `groups` groups, at most kMost.
template <int kMost, typename G, Sweep kSweep, typename Body>
__device__ __forceinline__ void each_group(const Walk<G, kSweep>& walk, int groups,
                                           const Body& body) {
#pragma unroll
  for (int k = 0; k < kMost; ++k) {
    if (k < groups) body(k, tile_of_group(walk, k));
  }
}

/// c[k] = rows columns^T for `groups` groups, with rows(s) of every block of channels and
/// `place_of(tile)` of the columns in shared memory. Two groups at a time: then few products wait
/// for one another. Beyond the last group c may have that one's product.
template <typename G, Sweep kSweep, int kCount, typename Rows, typename PlaceOf>
__device__ __forceinline__ void multiply_groups(Block (&c)[kCount], const Rows& rows,
                                                const Walk<G, kSweep>& walk, int groups,
                                                const Loader<G>& load, const PlaceOf& place_of) {
  const auto multiply = [&](auto count, int from) {
    constexpr int kAtOnce = decltype(count)::value;
    int place[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      place[i] = place_of(tile_of_group(walk, min(from + i, groups - 1)));
      clear(c[from + i]);
    }
#pragma unroll
    for (int s = 0; s < G::kBlocks; ++s) {
      Operand columns[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) columns[i] = load.plain(place[i], s);
      add_products(c + from, rows(s), columns);
    }
  };
#pragma unroll
  for (int from = 0; from < kCount; from += 2) {
    if (from >= groups) continue;
    if (from + 1 < kCount)
      multiply(MapIndex<2>(), from);
    else
      multiply(MapIndex<1>(), from);
  }
}
/// The same with rows of the warp's own tensor `own` and columns of the walk's tensor `other`.
template <typename G, Sweep kSweep, int kCount>
__device__ __forceinline__ void multiply_raw_groups(Block (&c)[kCount], int own, int other,
                                                    const Walk<G, kSweep>& walk, int groups,
                                                    const Loader<G>& load) {
  const auto rows = [&](int s) { return load.plain(walk.own_tile(own), s); };
  const auto place_of = [&](int tile) { return walk.tile(other, tile); };
  multiply_groups(c, rows, walk, groups, load, place_of);
}
/// sum += a columns, for this slice of the columns' channels; a is paired.
template <typename G>
__device__ __forceinline__ void add_columns(Block (&sum)[kSliceBlocks], const Operand& a,
                                            const Loader<G>& load, int tile, int slice) {
  Operand columns[kSliceBlocks];
#pragma unroll
  for (int b = 0; b < kSliceBlocks; ++b) columns[b] = load.paired(tile, slice * kSliceBlocks + b);
  add_products(sum, a, columns);
}

}  // namespace fmmformer::cuda::chunks_fp32
