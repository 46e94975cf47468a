// SPDX-License-Identifier: Apache-2.0
// The keys' warpgroup: dk of a chunk. The formulas are those of docs/math.md.
#pragma once

#include "attention/fmm/cuda/chunks/both_sides/rows.cuh"

namespace fmmformer::cuda::chunks::both_sides {

/// dk += the band's part, of up to two tiles of the next chunk too.
template <typename G>
__device__ __forceinline__ void add_near_dk(Block (&dk)[kTiles], const Walk<G>& walk,
                                            const Loader<G>& load) {
#pragma unroll
  for (int k = 0; k < kMostGroups; ++k) {
    const int tile = walk.tile + k;
    const uint4 all = *walk.near_place(tile, kScoreGradients, k);
    add_columns<G>(dk, Fragment{{all.x, all.y, all.z, all.w}}, load, walk.row_tile(kQ, tile), 0);
  }
}

/// g - dots, column by column.
__device__ __forceinline__ Fragment less_dots(const Fragment& g, const float* dots_of_tile) {
  float2 dots[2];
  column_numbers(dots, dots_of_tile);
  Fragment result;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const Pair column = as_pair(Bf16::pack(dots[i / 2].x, dots[i / 2].y));
    result.r[i] = as_bits(__hsub2(as_pair(g.r[i]), column));
  }
  return result;
}

/// What later queries' dots take away, equal for all rows.
template <typename G>
__device__ __forceinline__ void set_minus_dot_sums(Block (&d)[kTiles], int map) {
  const float* sums = shared_at<float>(Memory<G>::kDotSums) + map * G::kDim + lane_id() % 4 * 2;
#pragma unroll
  for (int n = 0; n < 2 * kTiles; ++n) {
    const float2 y = *reinterpret_cast<const float2*>(sums + n * 8);
    float(&c)[4] = d[n / 2][n % 2];
    c[0] = c[2] = -y.x, c[1] = c[3] = -y.y;
  }
}

template <typename G>
__device__ __forceinline__ void key_step(const Walk<G>& walk, const Loader<G>& load) {
  using M = Memory<G>;
  using Role = Groups<G>;
  const int thread = thread_anew() % kGroupThreads;
  make_key_features<G>(walk.area(kK), M::kKeyFeatures, walk.args.head_dim, walk.live(walk.chunk),
                       thread);
  show_to_warpgroup();
  arrive_at_barrier(kFeaturesForValues, Role::kThreads);
  Fragment g[kTiles];
  {
    Block c[kTiles];  // v grad_out^T
    begin_columns<false>(c, walk.area(kV), walk.area(kGradOut));
    named_barrier(kFeaturesMade, (G::kMaps + 1) * kGroupThreads);
    finish_products(c);
    seen_scores<true>(g, walk.tile, [&](int tile) { return rounded(c[tile]); });
  }
  named_barrier(kStateMade, 2 * kGroupThreads);
  Block d[G::kMaps][kTiles];
#pragma unroll
  for (int l = 0; l < G::kMaps; ++l) {
    set_minus_dot_sums<G>(d[l], l);
    begin_columns<true>(d[l], walk.area(kV), M::kAfter + l * G::kArea);
  }
  finish_products(d);
  walk.await_readers();
  if (walk.goes_on()) begin_next_rows(walk);
  named_barrier(kDotsMade, (G::kMaps + 1) * kGroupThreads);
  Fragment less[G::kMaps][kTiles];
#pragma unroll
  for (int l = 0; l < G::kMaps; ++l) {
    const float* dots = shared_at<float>(M::kDots) + l * kChunk;
    seen_scores<true>(less[l], walk.tile,
                      [&](int tile) { return less_dots(g[tile], dots + tile * kBlockDim); });
    begin_rows<G>(d[l], less[l], M::kQueryFeatures + l * G::kArea);
  }
  finish_products(d);
#pragma unroll
  for (int l = 0; l < G::kMaps; ++l) {
    const float sign[2] = {l == 1 ? -1.f : 1.f, l == 1 ? -1.f : 1.f};
    const int features = M::kKeyFeatures + l * G::kArea + walk.tile * G::kTile;
#pragma unroll
    for (int b = 0; b < kTiles; ++b) {
      make_input_gradient(d[l][b], load.left(features, b), sign);
#pragma unroll
      for (int i = 0; i < 8 && l > 0; ++i) d[0][b][i / 4][i % 4] += d[l][b][i / 4][i % 4];
    }
  }
  if (walk.args.has_near) {
    named_barrier(kNearForKeys, 2 * kGroupThreads);
    if constexpr (G::kDrops) {  // for the values, who have no registers for it
      if (walk.goes_on()) begin_dropout_word(walk, walk.chunk - 1, thread_anew() % kGroupThreads);
    }
    add_near_dk(d[0], walk, load);
  }
  write_rows(walk, load, kDk, d[0], M::kStage + walk.tile * G::kTile);
}

}  // namespace fmmformer::cuda::chunks::both_sides
