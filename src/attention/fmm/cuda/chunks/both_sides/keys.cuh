// SPDX-License-Identifier: Apache-2.0
// The keys' warpgroup: dk of a chunk, and the sums of later queries' features times dots. The
// formulas are those of docs/math.md.
#pragma once

#include "attention/fmm/cuda/chunks/both_sides/rows.cuh"

namespace fmmformer::cuda::chunks::both_sides {

/// sum_i dot_i f(q_i) over the queries of later chunks; a warp has sixteen channels of every map, a
/// lane channels g and g + 8 of them.
template <typename G>
struct DotSums {
  float of[G::kMaps][2];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int l = 0; l < G::kMaps; ++l) of[l][0] = of[l][1] = 0.f;
  }
  __device__ __forceinline__ void add(const Walk<G>& walk, const Loader<G>& load) {
    using M = Memory<G>;
#pragma unroll
    for (int l = 0; l < G::kMaps; ++l) {
      float sum[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const float* dots =
            shared_at<float>(M::kDots) + l * kChunk + t * kBlockDim + lane_id() % 4 * 2;
        const Fragment f =
            load.left_turned(M::kQueryFeatures + l * G::kArea + t * G::kTile, walk.tile);
        Bf16::multiply(sum, f, {{Bf16::pack(dots[0], dots[1]), Bf16::pack(dots[8], dots[9])}});
      }
      of[l][0] += sum[0], of[l][1] += sum[2];
    }
  }
  __device__ __forceinline__ void publish(int tile) const {
    if (lane_id() % 4 != 0) return;
    float* to = shared_at<float>(Memory<G>::kDotSums) + tile * kBlockDim + lane_id() / 4;
#pragma unroll
    for (int l = 0; l < G::kMaps; ++l) to[l * G::kDim] = of[l][0], to[l * G::kDim + 8] = of[l][1];
  }
};

/// dk += the band's part, of up to two tiles of the next chunk too.
template <typename G>
__device__ __forceinline__ void add_near_dk(Block (&dk)[kTiles], const Walk<G>& walk,
                                            const Loader<G>& load) {
#pragma unroll
  for (int k = 0; k < kMostGroups; ++k) {
    const int tile = walk.tile + k, chunk = walk.chunk + tile / kTiles;
    const uint4 all = *near_place<G>(chunk, tile % kTiles, kScoreGradients, k);
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

template <typename G>
__device__ __forceinline__ void key_step(const Walk<G>& walk, const Loader<G>& load,
                                         DotSums<G>& sums) {
  using M = Memory<G>;
  using Role = Groups<G>;
  const int thread = threadIdx.x % kGroupThreads;
  if (walk.chunk > walk.begin)
    begin_rows_of(walk, kK, -2, thread), begin_rows_of(walk, kV, -2, thread);
  commit_copies();
  make_key_features<G>(walk.area(kK), M::kKeyFeatures, walk.live(walk.chunk), thread);
  sums.publish(walk.tile);
  show_to_warpgroup();
  arrive_at_barrier(kFeaturesForValues, Role::kThreads);
  Fragment g[kTiles];
  {
    Block c[kTiles];  // v grad_out^T
    begin_columns<false>(c, walk.area(kV), walk.area(kGradOut));
    named_barrier(kFeaturesMade, Role::kThreads);
    finish_products(c);
    seen_scores<true>(g, walk.tile, [&](int tile) { return rounded(c[tile]); });
  }
  Block d[G::kMaps][kTiles];
#pragma unroll
  for (int l = 0; l < G::kMaps; ++l)
    begin_columns<false>(d[l], walk.area(kV), M::kAfter + l * G::kArea);
  finish_products(d);
  named_barrier(kDotsMade, (G::kMaps + 1) * kGroupThreads);
  Fragment less[G::kMaps][kTiles];
#pragma unroll
  for (int l = 0; l < G::kMaps; ++l) {
    const float* dots = shared_at<float>(M::kDots) + l * kChunk;
    seen_scores<true>(less[l], walk.tile,
                      [&](int tile) { return less_dots(g[tile], dots + tile * kBlockDim); });
    begin_rows<G>(d[l], less[l], M::kQueryFeatures + l * G::kArea);
  }
  sums.add(walk, load);
  finish_products(d);
#pragma unroll
  for (int l = 0; l < G::kMaps; ++l) {
    const float sign[2] = {l == 1 ? -1.f : 1.f, l == 1 ? -1.f : 1.f};
    const float* later = shared_at<float>(M::kDotSums) + l * G::kDim + lane_id() % 4 * 2;
    const int features = M::kKeyFeatures + l * G::kArea + walk.tile * G::kTile;
#pragma unroll
    for (int b = 0; b < kTiles; ++b) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float2 y = *reinterpret_cast<const float2*>(later + b * kBlockDim + n * 8);
        float(&e)[4] = d[l][b][n];
        e[0] -= y.x, e[1] -= y.y, e[2] -= y.x, e[3] -= y.y;
      }
      make_input_gradient(d[l][b], load.left(features, b), sign);
#pragma unroll
      for (int i = 0; i < 8 && l > 0; ++i) d[0][b][i / 4][i % 4] += d[l][b][i / 4][i % 4];
    }
  }
  if (walk.args.has_near) {
    named_barrier(kNearForKeys, 2 * kGroupThreads);
    add_near_dk(d[0], walk, load);
  }
  write_rows(walk, kDk, d[0], M::kStage + walk.tile * G::kTile);
}

}  // namespace fmmformer::cuda::chunks::both_sides
