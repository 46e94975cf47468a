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
  uint64_t seed;

  __device__ explicit Band(const SweepArgs& args) : bits(0) {
    groups = args.has_near ? (args.left + kBlockDim - 1) / kBlockDim + 1 : 0;
    scale = args.near_scale * kLog2E;
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

/// Groups mine, mine + kSharers, ... of scores become all groups of all slices. Two areas in turn:
/// who writes to one again has met all who read it at the other's barrier.
template <typename G, Sweep kSweep, int kCount, int kOwn>
__device__ __forceinline__ void share_scores(Block (&c)[kCount], const Block (&sums)[kOwn],
                                             int mine, const Walk<G, kSweep>& walk, int groups) {
  using M = Memory<G, kSweep>;
  const Place<G>& place = walk.place;
  float4* area =
      reinterpret_cast<float4*>(shared_at(M::kScores + place.turn * M::kScoresSize +
                                          place.tile * G::kGroups * kBlockDim * kBlockDim)) +
      lane_id();
  place.turn ^= 1;
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    if (mine + j * G::kSharers >= groups) continue;
    const Block& total = sums[j];
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      area[((mine + j * G::kSharers) * 2 + n) * kWarpSize] =
          make_float4(total[n][0], total[n][1], total[n][2], total[n][3]);
    }
  }
  place.meet_slices();
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    if (k >= groups) continue;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float4 all = area[(k * 2 + n) * kWarpSize];
      c[k][n][0] = all.x, c[k][n][1] = all.y, c[k][n][2] = all.z, c[k][n][3] = all.w;
    }
  }
}

/// c[k] = rows columns^T for `groups` groups, with the shifts of both, with rows(s) of every block
/// of channels and `place_of(tile)` of the columns in shared memory. more(s, rows(s)) comes with
/// every block. `mine`: which groups this slice begins with, where slices share them.
template <typename G, Sweep kSweep, int kCount, typename Rows, typename PlaceOf, typename More>
__device__ __forceinline__ void multiply_groups(Block (&c)[kCount], const Rows& rows,
                                                const Walk<G, kSweep>& walk, int groups, int mine,
                                                const Loader<G>& load, const PlaceOf& place_of,
                                                const More& more) {
  constexpr int kOwn = (kCount + G::kSharers - 1) / G::kSharers;
  Block sums[kOwn];
  clear(sums);
  int place[kOwn];
#pragma unroll
  for (int j = 0; j < kOwn; ++j)
    place[j] = place_of(tile_of_group(walk, min(mine + j * G::kSharers, groups - 1)));
#pragma unroll 4
  for (int s = 0; s < G::kBlocks; ++s) {
    Right columns[kOwn];
#pragma unroll
    for (int j = 0; j < kOwn; ++j) columns[j] = load.right(place[j], s);
    const Left row = rows(s);
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      if (mine + j * G::kSharers >= groups) continue;
      const Right column[1] = {columns[j]};
      add_products(sums + j, row, column);
    }
    more(s, row);
  }
  if constexpr (G::kShares) {
    share_scores<G>(c, sums, mine, walk, groups);
  } else {
#pragma unroll
    for (int i = 0; i < 8 * kCount; ++i) c[i / 8][i / 4 % 2][i % 4] = sums[i / 8][i / 4 % 2][i % 4];
  }
}
/// The same with rows of the warp's own tensor `own` and columns of the walk's tensor `other`.
template <typename G, Sweep kSweep, int kCount>
__device__ __forceinline__ void multiply_raw_groups(Block (&c)[kCount], int own, int other,
                                                    const Walk<G, kSweep>& walk, int groups,
                                                    const Loader<G>& load) {
  const auto rows = [&](int s) { return load.left(walk.own_tile(own), s); };
  const auto place_of = [&](int tile) { return walk.tile(other, tile); };
  const int mine = G::kShares ? walk.place.slice : 0;
  multiply_groups(c, rows, walk, groups, mine, load, place_of, [](int, const Left&) {});
}
/// The shift of products of own rows of tensor 1 with the walk's, grad_out v^T, and what they are
/// at most.
template <typename G, Sweep kSweep>
__device__ __forceinline__ int product_shift(const Walk<G, kSweep>& walk) {
  return walk.shift(kOwnRows + 1) + walk.shift(kBandRows + 1);
}
template <typename G>
constexpr int kProductBits = 2 * kTop + (G::kDim == 64 ? 6 : 7);  // with their shift
template <typename G, Sweep kSweep>
__device__ __forceinline__ float largest_product(const Walk<G, kSweep>& walk) {
  return power_of_2(kProductBits<G> - product_shift(walk));
}

/// sum += a columns, for this slice of the columns' channels.
template <typename G>
__device__ __forceinline__ void add_columns(Block (&sum)[kSliceBlocks], const Left& a,
                                            const Loader<G>& load, int tile, int slice) {
  Right columns[kSliceBlocks];
#pragma unroll
  for (int b = 0; b < kSliceBlocks; ++b)
    columns[b] = load.turned_right(tile, slice * kSliceBlocks + b);
  add_products(sum, a, columns);
}

/// rows += scores columns, for all groups that the warp's rows see of the walk's tensor 1.
/// `largest`: what scores are at most.
template <typename G, Sweep kSweep>
__device__ __forceinline__ void add_groups(Block (&rows)[kSliceBlocks],
                                           const Block (&scores)[G::kGroups], float largest,
                                           const Walk<G, kSweep>& walk, const Band<kSweep>& band,
                                           const Loader<G>& load) {
  const int shift = shift_for(largest);
  const float scale = power_of_2(shift);
  Block sums[kSliceBlocks];
  clear(sums);
  each_group<G::kGroups>(walk, max(band.groups, far_groups(walk)), [&](int k, int tile) {
    add_columns<G>(sums, split_result(scores[k], scale), load, walk.tile(1, tile),
                   walk.place.slice);
  });
  add_totals(rows, sums, power_of_2(-shift - walk.shift(kBandRows + 1)));
}

}  // namespace fmmformer::cuda::chunks_fp32
