// SPDX-License-Identifier: Apache-2.0
// The two products of which a chunk consists, by a warpgroup: of its 64 rows, a warp has sixteen.
// Tiles lie in shared memory, tile i at place_of(i):
//
//   begin_columns   c = a t^T, or c +=   over channels: rows of four tiles are the columns of c
//   begin_rows      c += a t             over the tiles' rows
//
// Results are there after finish_products; operands in registers must stay until then.
#pragma once

#include "attention/fmm/cuda/chunks/far.cuh"

namespace fmmformer::cuda::chunks::warpgroup {

constexpr int kFurther = kBlockDim * sizeof(Elem) >> 4;  // sixteen channels, as operands count

__device__ __forceinline__ uint64_t operand_at(int place) {
  return warpgroup_operand(shared_at<Elem>(place));
}

/// Of features, in registers; four tiles lie side by side.
template <bool kAdd, typename PlaceOf>
__device__ __forceinline__ void begin_columns(Block (&c)[kTiles], const Fragment (&a)[kSliceBlocks],
                                              const PlaceOf& place_of) {
  begin_warpgroup_products();
  const uint64_t tiles = operand_at(place_of(0));
#pragma unroll
  for (int s = 0; s < kSliceBlocks; ++s) {
    if (s == 0) begin_step<kAdd, false>(c, a[s], tiles);
    if (s != 0) begin_step<true, false>(c, a[s], tiles + s * kFurther);
  }
}
/// Of the own rows of tensor 1 with four tiles that lie side by side,
template <typename G, Sweep kSweep, typename PlaceOf>
__device__ __forceinline__ void begin_own_columns(Block (&c)[kTiles], const Walk<G, kSweep>&,
                                                  const PlaceOf& place_of) {
  begin_warpgroup_products();
  const uint64_t own = operand_at(Memory<G, kSweep>::kOwn + G::kArea),
                 tiles = operand_at(place_of(0));
#pragma unroll
  for (int s = 0; s < kSliceBlocks; ++s) {
    if (s == 0) begin_step<false, false>(c, own, tiles);
    if (s != 0) begin_step<true, false>(c, own + s * kFurther, tiles + s * kFurther);
  }
}
/// and with the chunk's rows of tensor 1, of whose ring two tiles lie side by side.
template <typename G, Sweep kSweep>
__device__ __forceinline__ void begin_raw_columns(Block (&c)[kTiles], const Walk<G, kSweep>& walk) {
  begin_warpgroup_products();
  const uint64_t own = operand_at(Memory<G, kSweep>::kOwn + G::kArea);
#pragma unroll
  for (int i = 0; i < kTiles; i += 2) {
    const uint64_t tiles = operand_at(walk.tile(1, i));
#pragma unroll
    for (int s = 0; s < kSliceBlocks; ++s) {
      if (s == 0) begin_step<false>(c + i, own, tiles);
      if (s != 0) begin_step<true>(c + i, own + s * kFurther, tiles + s * kFurther);
    }
  }
}

template <typename PlaceOf>
__device__ __forceinline__ void begin_rows(Block (&c)[kSliceBlocks], const Fragment (&a)[kTiles],
                                           const PlaceOf& place_of) {
  begin_warpgroup_products();
#pragma unroll
  for (int i = 0; i < kTiles; ++i) begin_step<true, true>(c, a[i], operand_at(place_of(i)));
}

/// Waits for every product begun; their results must be given, as no others may be used.
template <typename... Results>
__device__ __forceinline__ void finish_products(Results&... results) {
  await_warpgroup_products();
  (arrived(results), ...);
}

/// Where a tile of the chunk lies as the warp's rows see it: below 0 they see all of it, at 0 it is
/// their own, above they see nothing.
template <typename G, Sweep kSweep>
__device__ __forceinline__ int beyond(const Walk<G, kSweep>& walk, int tile) {
  return kSweep == Sweep::kKeys ? walk.place.tile - tile : tile - walk.place.tile;
}
/// Calls body(tile) for the tiles of the chunk that the warp's rows see something of.
template <typename G, Sweep kSweep, typename Body>
__device__ __forceinline__ void each_seen_tile(const Walk<G, kSweep>& walk, const Body& body) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    if (beyond(walk, tile) <= 0) body(tile);
  }
}
/// Clears what rows do not see of a block of a tile's columns; Part: Block or Fragment.
template <typename G, Sweep kSweep, typename Part>
__device__ __forceinline__ void cut_own_tile(Part& part, const Walk<G, kSweep>& walk, int tile) {
  if (beyond(walk, tile) == 0) cut_at_diagonal<kSweep == Sweep::kKeys>(part);
}
/// value(tile) for the tiles that rows see, cut, as operands; zeros for the others.
template <typename G, Sweep kSweep, typename Value>
__device__ __forceinline__ void seen_scores(Fragment (&scores)[kTiles], const Walk<G, kSweep>& walk,
                                            const Value& value) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) scores[tile] = {{0, 0, 0, 0}};
  each_seen_tile(walk, [&](int tile) {
    scores[tile] = value(tile);
    cut_own_tile(scores[tile], walk, tile);
  });
}

}  // namespace fmmformer::cuda::chunks::warpgroup
