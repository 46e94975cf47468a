// SPDX-License-Identifier: Apache-2.0
// The columns that sixteen rows see, in groups of sixteen: up to three tiles of a band, the tiles
// of the chunk before the rows' own or, where rows are keys, after it; and products with them.
#pragma once

#include "attention/fmm/cuda/chunks/rows.cuh"
#include "attention/fmm/cuda/dropout.cuh"

namespace fmmformer::cuda::chunks {

constexpr int kMostGroups = kHalo + 1;  // of sixteen columns that a band may touch
static_assert(kFarthest == kHalo * kBlockDim);

/// The band as seen from sixteen rows; group k is the tile k before the rows' own or, where rows
/// are keys, k after it.
template <typename G, Sweep kSweep>
struct Band {
  static constexpr bool kAfter = kSweep == Sweep::kKeys;
  int groups;     // none, two or three
  uint32_t bits;  // elements inside, eight for each group: 4 * (column / 8) + i
  float scale;    // of scores, for powers of 2
  uint64_t seed;

  __device__ explicit Band(const SweepArgs& args) : bits(0) {
    groups = args.has_near ? max((args.left + kBlockDim - 1) / kBlockDim + 1, 2) : 0;
    scale = args.near_scale * kLog2E;
    seed = G::kDrops ? dropout_seed(args) : 0;
    for (int i = 0; i < kMostGroups * 8; ++i) {
      const int across = column_of(i / 4 % 2, i) - row_of(i % 4);
      const int apart = i / 8 * kBlockDim + (kAfter ? across : -across);  // key to query
      if (apart >= 0 && apart <= args.left) bits |= 1u << i;
    }
    asm volatile("" : "+r"(bits));  // not to be computed again in every step
  }
  /// With bits that another has made; it must not draw.
  __device__ __forceinline__ Band(const SweepArgs& args, uint32_t bits)
      : groups(kMostGroups), bits(bits), scale(args.near_scale * kLog2E), seed(0) {}
  /// Of one group, those of live columns.
  __device__ __forceinline__ uint32_t inside(int group, uint32_t live) const {
    const uint32_t band = bits >> group * 8 & 0xffu;
    if (live == 0xffffu) return band;
    const uint32_t mine = live >> lane_id() % 4 * 2;
    return band & ((mine & 3) * 5 | (mine >> 8 & 3) * 0x50);
  }
};

/// The groups of columns that the warp's rows see: near, or far, those inside the chunk, or both.
enum class Reach { kNear, kFar, kBoth };
template <Reach kReach>
constexpr int kGroups = kReach == Reach::kNear ? kMostGroups : kTiles;
/// The last of them, -1 for none.
template <Reach kReach, typename G, Sweep kSweep>
__device__ __forceinline__ int last_group(const Walk<G, kSweep>& walk,
                                          const Band<G, kSweep>& band) {
  const int own = walk.place.tile, far = kSweep == Sweep::kKeys ? kTiles - 1 - own : own;
  if (kReach == Reach::kFar) return far;
  return kReach == Reach::kNear ? band.groups - 1 : max(band.groups - 1, far);
}
/// Which tile of the chunk a group is.
template <typename G, Sweep kSweep>
__device__ __forceinline__ int tile_of_group(const Walk<G, kSweep>& walk, int k) {
  return kSweep == Sweep::kKeys ? walk.place.tile + k : walk.place.tile - k;
}
/// Calls body(k, tile of the chunk) for every group.
template <Reach kReach, typename G, Sweep kSweep, typename Body>
__device__ __forceinline__ void each_group(const Walk<G, kSweep>& walk, const Band<G, kSweep>& band,
                                           const Body& body) {
  const int last = last_group<kReach>(walk, band);
#pragma unroll
  for (int k = 0; k < kGroups<kReach>; ++k) {
    if (k <= last) body(k, tile_of_group(walk, k));
  }
}

/// c[k] = rows columns^T for every group, with rows(s) of kRowBlocks blocks of channels and
/// `place_of(tile)` of the columns in shared memory, and then(k, tile, whether they see it). All
/// groups in the chunk (or two of the band's) are multiplied at once, whether the warp's rows see
/// them or not: products that wait for one another are few instructions and much time. Where a
/// group is none of theirs, c has the own tile's product.
template <Reach kReach, int kRowBlocks, int kCount, typename G, Sweep kSweep, typename Rows,
          typename PlaceOf, typename Then>
__device__ __forceinline__ void multiply_groups(Block (&c)[kCount], const Rows& rows,
                                                const Walk<G, kSweep>& walk,
                                                const Band<G, kSweep>& band, const Loader<G>& load,
                                                int first_block, const PlaceOf& place_of,
                                                const Then& then) {
  constexpr int kAtOnce = kReach == Reach::kNear ? 2 : kTiles;
  const int last = last_group<kReach>(walk, band);
#pragma unroll
  for (int from = 0; from < kGroups<kReach>; from += kAtOnce) {
    constexpr int kGroupCount = kGroups<kReach>;
    if (from > last) break;
    int place[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      place[i] = place_of(tile_of_group(walk, from + i <= last ? from + i : 0));
#pragma unroll
    for (int s = 0; s < kRowBlocks; ++s) {
      const Fragment row = rows(s);
#pragma unroll
      for (int i = 0; i < kAtOnce && from + i < kGroupCount; ++i) {
        const Fragment columns = load.right(place[i], first_block + s);
        if (s == 0) set_product(c[from + i], row, columns);
        if (s != 0) add_product(c[from + i], row, columns);
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce && from + i < kGroupCount; ++i)
      then(from + i, tile_of_group(walk, from + i), from + i <= last);
  }
}
/// The same with rows of the warp's own tensor `own` and columns of the walk's tensor `other`, over
/// all channels.
template <Reach kReach, int kCount, typename G, Sweep kSweep, typename Then>
__device__ __forceinline__ void multiply_raw_groups(Block (&c)[kCount], int own, int other,
                                                    const Walk<G, kSweep>& walk,
                                                    const Band<G, kSweep>& band,
                                                    const Loader<G>& load, const Then& then) {
  const auto rows = [&](int s) { return load.left(walk.own_tile(own), s); };
  const auto place_of = [&](int tile) { return walk.tile(other, tile); };
  multiply_groups<kReach, G::kBlocks>(c, rows, walk, band, load, 0, place_of, then);
}
/// sum += a columns, for this slice of the columns' channels.
template <typename G>
__device__ __forceinline__ void add_columns(Block (&sum)[kSliceBlocks], const Fragment& a,
                                            const Loader<G>& load, int tile, int slice) {
#pragma unroll
  for (int b = 0; b < kSliceBlocks; ++b)
    add_product(sum[b], a, load.right_turned(tile, slice * kSliceBlocks + b));
}

}  // namespace fmmformer::cuda::chunks
