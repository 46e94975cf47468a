// SPDX-License-Identifier: Apache-2.0
// Feature rows of a chunk, under powers of two from bounds of them; and all of a chunk's rows as
// pairs.
#pragma once

#include "attention/fmm/cuda/chunks_fp32/shares.cuh"

namespace fmmformer::cuda::chunks_fp32 {

/// The largest of query features times factors, map by map; piece_of(x, i): piece i of the thread's
/// share of raw rows. A barrier inside.
template <typename G, Sweep kSweep, typename PieceOf>
__device__ __forceinline__ void seek_largest_features(float (&largest)[G::kMaps],
                                                      const PieceOf& piece_of,
                                                      const Walk<G, kSweep>& walk) {
  using W = Walk<G, kSweep>;
#pragma unroll 1
  for (int l = 0; l < G::kMaps; ++l) {
    float mine = 0.f;
    with_paper_map<G>(walk.args.feature_maps[l], [&](auto feature, auto) {
#pragma unroll(G::kFed ? 1 : W::kShare)
      for (int i = 0; i < W::kShare; ++i) {
        if (!walk.has_share()) continue;
        const int token = W::share_row() + i * W::kRowsAtOnce;
        const float factor = walk.numbers(kNorm + l, token / kBlockDim)[token % kBlockDim];
        Piece x;
        piece_of(x, i);
#pragma unroll
        for (int j = 0; j < kPiece; ++j)
          mine = fmaxf(mine, fabsf(factor) * feature(x[j], decay_of(x[j])));
      }
    });
    W::Scales::raise_maximum(walk.set(), kSoughtFeatures + l, mine);
  }
  walk.place.meet_copiers();
#pragma unroll
  for (int l = 0; l < G::kMaps; ++l) largest[l] = walk.maximum(kSoughtFeatures + l);
}
/// What features are at most. Those of queries are multiplied with factors that belong to other
/// rows than the largest features may: where factors differ so much that a bound of the product
/// would cost bits (operands have some fifteen to spare), the largest is sought.
template <typename G, Sweep kSweep, typename PieceOf>
__device__ __forceinline__ void bound_features(float (&bounds)[G::kMaps], const PieceOf& piece_of,
                                               const Walk<G, kSweep>& walk) {
  using W = Walk<G, kSweep>;
  constexpr bool kOfQueries = Memory<G, kSweep>::kOfQueries;
  const float of_maps = W::feature_bound(walk.maximum(kBandRows));
  bool seek = false;
#pragma unroll
  for (int l = 0; l < G::kMaps; ++l) {
    bounds[l] = of_maps;
    if (!kOfQueries) continue;
    bounds[l] *= walk.maximum(kFactors + l);
    seek |= bounds[l] * walk.maximum(kInverseFactors + l) > float(1 << 13);
  }
  if (seek) seek_largest_features(bounds, piece_of, walk);
#pragma unroll
  for (int l = 0; l < G::kMaps; ++l) {
    W::Scales::set_bound(walk.set(), l, bounds[l]);
    W::Scales::set_shift(walk.set(), kFeatureRows + l, shift_for(bounds[l]));
  }
}
/// Feature rows of the chunk's keys, or of its queries times weight * far_scale / norm, from raw
/// rows; zeros for dead tokens and for channels that the head does not have, since features of 0
/// are not 0.
template <typename G, Sweep kSweep>
__device__ __forceinline__ void make_features(const Share<Walk<G, kSweep>>& raw,
                                              const Walk<G, kSweep>& walk) {
  using W = Walk<G, kSweep>;
  using M = Memory<G, kSweep>;
  const SweepArgs& args = walk.args;
  const int high = high_of_piece(W::share_column());
  float bounds[G::kMaps];
  const auto piece_of = [&](Piece& x, int i) {
#pragma unroll
    for (int j = 0; j < kPiece; ++j) x[j] = raw.x[i][j];
  };
  bound_features(bounds, piece_of, walk);
  Piece decay[W::kShare];
#pragma unroll
  for (int i = 0; i < W::kShare * kPiece; ++i)
    decay[i / kPiece][i % kPiece] = decay_of(raw.x[i / kPiece][i % kPiece]);
#pragma unroll 1
  for (int l = 0; l < G::kMaps; ++l) {
    const int shift = shift_for(pick(bounds, l));
    float factor[W::kShare];
#pragma unroll
    for (int i = 0; i < W::kShare; ++i) {
      const int token = W::share_row() + i * W::kRowsAtOnce;
      if constexpr (M::kOfQueries) {
        factor[i] =
            power_of_2(shift) * walk.numbers(kNorm + l, token / kBlockDim)[token % kBlockDim];
      } else {
        factor[i] = walk.live >> token & 1 ? power_of_2(shift) : 0.f;
      }
      if (!walk.has_share()) factor[i] = 0.f;
    }
    with_paper_map<G>(args.feature_maps[l], [&](auto feature, auto) {
#pragma unroll
      for (int i = 0; i < W::kShare; ++i) {
        Piece f;
#pragma unroll
        for (int j = 0; j < kPiece; ++j) f[j] = feature(raw.x[i][j], decay[i][j]);
        store_pairs(W::share_at(i, [&](int t) { return walk.feature_tile(l, t); }), high, f,
                    factor[i]);
      }
    });
  }
}
/// All rows of the chunk become pairs, and their features.
template <typename G, Sweep kSweep>
__device__ __forceinline__ void split_chunk(const ChunkShare<G, kSweep>& share,
                                            const Walk<G, kSweep>& walk) {
  using W = Walk<G, kSweep>;
  using M = Memory<G, kSweep>;
  int shifts[2];
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    shifts[which] = band_shift(walk, which, /*first=*/false);
    W::Scales::set_shift(walk.set(), kBandRows + which, shifts[which]);
    if (walk.args.has_near) shift_halo(walk, which, shifts[which]);
  }
#pragma unroll
  for (int which = 0; which < M::kOwnTensors; ++which) {
    const int shift = shift_for(walk.maximum(kOwnRows + which));
    W::Scales::set_shift(walk.set(), kOwnRows + which, shift);
    if (M::kOwnIsNear && !walk.args.has_near) continue;
    share.own[which].store([&](int t) { return W::own_area(which) + t * G::kTile; }, shift);
  }
  share.band[1].store([&](int t) { return walk.tile(1, t); }, shifts[1]);
  if (!M::kSums && walk.args.has_near)  // else features alone are operands
    share.band[0].store([&](int t) { return walk.tile(0, t); }, shifts[0]);
  make_features(share.band[0], walk);
  if constexpr (M::kOfQueries) split_dots(walk);
}

}  // namespace fmmformer::cuda::chunks_fp32
