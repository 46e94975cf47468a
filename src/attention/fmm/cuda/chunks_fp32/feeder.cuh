// SPDX-License-Identifier: Apache-2.0
// Eight warps that prepare the next chunk while eight walk: they copy its rows, measure and split
// them and make their features, which lie in shared memory twice for that. Own rows, for which
// there is room once, wait in the feeders' registers until the walkers have done with those before;
// the first chunk's come with the walkers, who would only wait.
//
// Loops are rolled: before the first chunk is there nobody else works, and instructions come from
// memory as slowly as rows do.
#pragma once

#include "attention/fmm/cuda/chunks_fp32/own_rows.cuh"
#include "attention/fmm/cuda/registers.cuh"

namespace fmmformer::cuda::chunks_fp32 {

// Registers of a thread: what a block begins with, 128, handed round by warpgroups.
constexpr int kRegistersOfWalker = 208, kRegistersOfFeeder = 48;

template <typename G, Sweep kSweep>
struct Feeder {
  using W = Walk<G, kSweep>;
  using M = Memory<G, kSweep>;
  using Scales = typename W::Scales;
  const SweepArgs& args;
  W walk;  // is at the chunk that is prepared
  const Weights<G> weights;

  __device__ Feeder(const SweepArgs& args, Place<G>& place)
      : args(args), walk(args, place), weights(args, place.h) {}

  __device__ __forceinline__ void feed() {
    constexpr Tiles kOfChunk = {0, G::kTiles};
    walk.look_around();
    const int chunks = walk.place.end - walk.place.begin;
    Tiles tiles = kOfChunk;  // that are prepared: at first, those beside the chunk as well
    if (args.has_near) tiles = {min(W::kFirstBeside, 0), G::kTiles + kHalo};
#pragma unroll 1
    for (int i = 0; i < chunks; ++i) {
      walk.place.forget();
      if (i > 0) Scales::clear_maxima(walk.set());
      copy(tiles);
      walk.see_next();
      wait_for_copies();
      walk.place.meet_copiers();
      measure(tiles);
      if constexpr (M::kOfQueries) measure_numbers(walk, weights);
      walk.place.meet_copiers();
      split_band(tiles);
      if constexpr (M::kOfQueries) split_dots(walk);
      if (i > 0) {  // those of the first chunk are not ours
        OwnRows<G, kSweep> own;
        own.load(walk);
        meet_block();
        own.store(walk);
      }
      meet_block();
      walk.advance();
      tiles = kOfChunk;
    }
    if (chunks > 0) meet_block();
  }

 private:
  /// Tiles of the ring, counted from the chunk's first.
  struct Tiles {
    int first, count;
  };
  static __device__ __forceinline__ bool is_beside(int tile) {
    return tile < 0 || tile >= G::kTiles;
  }
  /// Whether they are those of the first chunk and of a band beside it.
  static __device__ __forceinline__ bool has_beside(const Tiles& tiles) {
    return tiles.count > G::kTiles;
  }
  /// The row in its tile of row i of this thread's share.
  static __device__ __forceinline__ int row_in_tile(int i) {
    return i % W::kRowsOfTile * W::kRowsAtOnce + W::share_row();
  }
  static __device__ __forceinline__ int high() { return high_of_piece(W::share_column()); }
  __device__ __forceinline__ bool is_live(int tile, int row) const {
    return walk.live_bits(tile) >> row & 1;
  }
  __device__ __forceinline__ void copy(const Tiles& tiles) const {
    const float* from[2];
    int64_t step[2];
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      from[which] = walk.share_of(walk.view(which), walk.token(tiles.first));
      step[which] = W::kRowsAtOnce * walk.view(which).row_stride;
    }
#pragma unroll 1
    for (int i = 0; i < tiles.count * W::kRowsOfTile; ++i) {
      const int tile = tiles.first + i / W::kRowsOfTile, row = row_in_tile(i);
      const bool live = is_live(tile, row) && walk.has_share();
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        copy_async(shared_at(walk.tile(which, tile) + row * G::kRow + W::share_column()),
                   from[which], live);
        from[which] += step[which];
      }
    }
    if constexpr (M::kOfQueries) copy_numbers(tiles);
    OwnRows<G, kSweep>::prefetch(walk);
  }
  __device__ __forceinline__ void copy_numbers(const Tiles& tiles) const {
    static_assert(M::kNumberCount * kBlockDim <= kFeeders);
    const int n = Scales::copier() / kBlockDim, row = threadIdx.x % kBlockDim;
    const float* source = n < M::kNumberCount ? walk.row_numbers(n) : nullptr;
    if (!source) return;
#pragma unroll 1
    for (int i = 0; i < tiles.count; ++i) {
      const int token = walk.token(tiles.first + i) + row;
      copy_number_async(walk.numbers(n, tiles.first + i) + row,
                        source + min(max(token, 0), args.length - 1));
    }
  }
  __device__ __forceinline__ void load(Piece& x, int which, int tile, int row) const {
    load_piece(x, shared_at(walk.tile(which, tile) + row * G::kRow + W::share_column()));
  }
  /// Maxima of rows; those of rows beside the chunk are the chunk's before.
  __device__ __forceinline__ void measure(const Tiles& tiles) const {
    float largest[2] = {0.f, 0.f}, beside[2] = {0.f, 0.f};
#pragma unroll 2
    for (int i = 0; i < tiles.count * W::kRowsOfTile; ++i) {
      const int tile = tiles.first + i / W::kRowsOfTile;
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        Piece x;
        load(x, which, tile, row_in_tile(i));
        float of_piece = 0.f;
#pragma unroll
        for (int j = 0; j < kPiece; ++j) of_piece = fmaxf(of_piece, fabsf(x[j]));
        if (is_beside(tile))
          beside[which] = fmaxf(beside[which], of_piece);
        else
          largest[which] = fmaxf(largest[which], of_piece);
      }
    }
#pragma unroll
    for (int which = 0; which < 2; ++which)
      Scales::raise_maximum(walk.set(), kBandRows + which, largest[which]);
    if (!has_beside(tiles)) return;
#pragma unroll
    for (int which = 0; which < 2; ++which)
      Scales::raise_maximum(walk.set_beside(), kBandRows + which, beside[which]);
    if (!M::kOfQueries) return;
    const int copier = Scales::copier();
    const int tile = W::kFirstBeside + copier / kBlockDim, row = copier % kBlockDim;
    if (copier >= kHalo * kBlockDim) return;
    const float dot = walk.numbers(kDot<G> + G::kMaps, tile)[row];
    Scales::raise_maximum(walk.set_beside(), kDots + G::kMaps,
                          is_live(tile, row) ? fabsf(dot) : 0.f);
  }
  /// All rows become pairs, and those of the chunk features as well.
  __device__ __forceinline__ void split_band(const Tiles& tiles) const {
    float bounds[G::kMaps], feature_scale[G::kMaps], raw_scale[2];
    const auto piece_of = [&](Piece& x, int i) { load(x, 0, i / W::kRowsOfTile, row_in_tile(i)); };
    bound_features(bounds, piece_of, walk);
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const int shift = band_shift(walk, which, has_beside(tiles));
      Scales::set_shift(walk.set(), kBandRows + which, shift);
      if (has_beside(tiles)) Scales::set_shift(walk.set_beside(), kBandRows + which, shift);
      raw_scale[which] = power_of_2(shift);
    }
#pragma unroll
    for (int l = 0; l < G::kMaps; ++l) feature_scale[l] = power_of_2(shift_for(bounds[l]));
#pragma unroll 1
    for (int i = 0; i < tiles.count * W::kRowsOfTile; ++i) {
      const int tile = tiles.first + i / W::kRowsOfTile, row = row_in_tile(i);
      Piece x, y, decay;
      load(x, 0, tile, row), load(y, 1, tile, row);
      __syncwarp();  // a neighbour's numbers are where this lane's parts go
      if (args.has_near) store_pairs(walk.tile(0, tile) + row * G::kRow, high(), x, raw_scale[0]);
      store_pairs(walk.tile(1, tile) + row * G::kRow, high(), y, raw_scale[1]);
      if (is_beside(tile)) continue;
#pragma unroll
      for (int j = 0; j < kPiece; ++j) decay[j] = decay_of(x[j]);
#pragma unroll
      for (int l = 0; l < G::kMaps; ++l) {
        float factor = feature_scale[l];
        if constexpr (M::kOfQueries) {
          factor *= walk.numbers(kNorm + l, tile)[row];
        } else {
          factor = is_live(tile, row) ? factor : 0.f;
        }
        if (!walk.has_share()) factor = 0.f;
        with_paper_map<G>(args.feature_maps[l], [&](auto feature, auto) {
          Piece f;
#pragma unroll
          for (int j = 0; j < kPiece; ++j) f[j] = feature(x[j], decay[j]);
          store_pairs(walk.feature_tile(l, tile) + row * G::kRow, high(), f, factor);
        });
      }
    }
  }
};

}  // namespace fmmformer::cuda::chunks_fp32
