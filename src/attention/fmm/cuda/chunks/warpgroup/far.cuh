// SPDX-License-Identifier: Apache-2.0
// The far fields by a warpgroup's products, map by map. The formulas are those of docs/math.md;
// what a normaliser takes away is a product with dots instead of a sum for every score.
#pragma once

#include "attention/fmm/cuda/chunks/warpgroup/near.cuh"

namespace fmmformer::cuda::chunks::warpgroup {

/// Places of a map's tiles.
template <typename G, Sweep kSweep, int kMap>
__device__ __forceinline__ int feature_tile(int i) {
  return Memory<G, kSweep>::kFeatures + kMap * G::kArea + i * G::kTile;
}
template <typename G, Sweep kSweep, int kMap>
__device__ __forceinline__ int state_tile(int i) {
  using M = Memory<G, kSweep>;
  return M::kState + kMap * M::kStateOfMap + i * G::kTile;
}

/// a += weight * far_scale / norm * <f(q), f(k)>, inside the chunk (first map: a = ...); `factor`
/// becomes what the rows were multiplied by. f: the queries' features. Writes normalisers.
template <typename G, int kMap>
__device__ __forceinline__ void add_scores(Block (&a)[kTiles], float (&factor)[2],
                                           const Fragment (&f)[G::kBlocks],
                                           const Walk<G, Sweep::kForward>& walk, float weight) {
  using M = Memory<G, Sweep::kForward>;
  const SweepArgs& args = walk.args;
  Block s[kTiles];
  float before[4] = {0.f, 0.f, 0.f, 0.f}, sum[2] = {0.f, 0.f}, norm[2];
  begin_columns<false>(s, f, feature_tile<G, Sweep::kForward, kMap>);
#pragma unroll
  for (int b = 0; b < G::kBlocks; ++b)
    Bf16::multiply(before, f[b], KeySumOperands<G>::load(M::kKeySums, kMap, b));
  finish_products(s);
  each_seen_tile(walk, [&](int tile) {
    cut_own_tile(s[tile], walk, tile);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i % 4 / 2] += s[tile][i / 4][i % 4];
  });
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    norm[r] = has_row_sums(args) ? quad_sum(sum[r]) + before[2 * r] + before[2 * r + 1] + args.eps
                                 : args.fixed_norm;
    factor[r] = __fdividef(weight * args.far_scale, norm[r]);
  }
  each_seen_tile(walk, [&](int tile) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& to = a[tile][i / 4][i % 4];
      const float score = factor[i % 4 / 2] * s[tile][i / 4][i % 4];
      to = kMap == 0 ? score : to + score;
    }
  });
  if (!has_row_sums(args)) return;
  float* normalisers = args.normalisers + walk.place.row_index(args, G::kMaps, kMap);
  each_row_once(walk, [&](int r, int token) { normalisers[token] = norm[r]; });
}

/// out += factor * f(q) S, with the state before the chunk. f becomes what is multiplied, which
/// must be left alone until products are finished.
template <typename G, int kMap>
__device__ __forceinline__ void begin_state_values(Block (&out)[kSliceBlocks],
                                                   const float (&factor)[2],
                                                   Fragment (&f)[G::kBlocks]) {
  const SplitFactor split[2] = {SplitFactor(factor[0]), SplitFactor(factor[1])};
#pragma unroll
  for (int b = 0; b < G::kBlocks; ++b) scale_rows(f[b], split);
  begin_rows(out, f, state_tile<G, Sweep::kForward, kMap>);
}

/// dq += the gradient of one map, from g = grad_out v^T inside the chunk; writes row dots. `rest`:
/// what rounding left off of g, since weights' gradients are long sums of terms of either sign.
/// Returns <dO, far field> of rows g and g + 8.
template <typename G, int kMap>
__device__ __forceinline__ float far_query(Block (&dq)[kSliceBlocks], const Fragment (&g)[kTiles],
                                           const Fragment (&rest)[kTiles],
                                           const Walk<G, Sweep::kQueries>& walk,
                                           const OwnRows<G, Sweep::kQueries>& q, float weight) {
  const SweepArgs& args = walk.args;
  const Place<G>& place = walk.place;
  constexpr auto kFeatures = feature_tile<G, Sweep::kQueries, kMap>;
  Block u[kSliceBlocks];  // sum_j G_ij f(k_j)
  float norm[2] = {args.fixed_norm, args.fixed_norm}, dot[2] = {0.f, 0.f};
  if (has_row_sums(args)) walk.own_numbers(norm, kNorm<G> + kMap);
  begin_own_columns(u, walk, state_tile<G, Sweep::kQueries, kMap>);
  begin_rows(u, g, kFeatures);
  begin_rows(u, rest, kFeatures);
  finish_products(u);
#pragma unroll
  for (int b = 0; b < kSliceBlocks; ++b) {
    const Fragment f = q.template features<kMap>(b);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float low, high;
      Bf16::unpack(f.r[j], low, high);
      dot[j % 2] += low * u[b][j / 2][j % 2 * 2] + high * u[b][j / 2][j % 2 * 2 + 1];
    }
  }
  sum_over_row<G>(dot, place, kMap);
  float by_weight = 0.f, factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool live = walk.live_bits(place.tile) >> row_of(2 * r) & 1;
    const float inverse = live ? __fdividef(1.f, norm[r]) : 0.f, scale = args.far_scale * inverse;
    by_weight += scale * dot[r];
    factor[r] = scale * weight;
    dot[r] = has_row_sums(args) ? dot[r] * inverse : 0.f;
  }
  float* dots = args.row_dots + place.row_index(args, G::kFields, kMap);
  each_row_once(walk, [&](int r, int token) { dots[token] = dot[r]; });
#pragma unroll
  for (int i = 0; i < 2 * kSliceBlocks; ++i) {
    const float2 z = key_sums_of<G, Sweep::kQueries>(place, kMap, i / 2, i % 2);
    float(&c)[4] = u[i / 2][i % 2];
    c[0] -= dot[0] * z.x, c[1] -= dot[0] * z.y, c[2] -= dot[1] * z.x, c[3] -= dot[1] * z.y;
  }
  // The chunk's own part of z, by dots in two parts: it is not small where a sequence begins.
  const SplitFactor split[2] = {SplitFactor(-dot[0]), SplitFactor(-dot[1])};
  Fragment minus_dots[2][kTiles];
  seen_scores(minus_dots[0], walk, [&](int) {
    return Fragment{{split[0].high, split[1].high, split[0].high, split[1].high}};
  });
  seen_scores(minus_dots[1], walk, [&](int) {
    return Fragment{{split[0].low, split[1].low, split[0].low, split[1].low}};
  });
  begin_rows(u, minus_dots[0], kFeatures);
  begin_rows(u, minus_dots[1], kFeatures);
  finish_products(u);
  q.template add_input_gradient<kMap>(dq, u, factor, 0);
  return by_weight;
}

/// dk += the gradient of one map, from g = v grad_out^T inside the chunk.
template <typename G, int kMap>
__device__ __forceinline__ void far_key(Block (&dk)[kSliceBlocks], const Fragment (&g)[kTiles],
                                        const Walk<G, Sweep::kKeys>& walk,
                                        const OwnRows<G, Sweep::kKeys>& keys) {
  constexpr auto kFeatures = feature_tile<G, Sweep::kKeys, kMap>;
  Block d[kSliceBlocks];
  Fragment minus_dots[kTiles];
  seen_scores(minus_dots, walk, [&](int tile) {
    float2 dots[2];
    column_numbers(dots, walk.numbers(kDot<G> + kMap, tile));
    return equal_rows(Bf16::pack(-dots[0].x, -dots[0].y), Bf16::pack(-dots[1].x, -dots[1].y));
  });
  begin_own_columns(d, walk, state_tile<G, Sweep::kKeys, kMap>);
  begin_rows(d, g, kFeatures);
  begin_rows(d, minus_dots, kFeatures);
  finish_products(d);
#pragma unroll
  for (int i = 0; i < 2 * kSliceBlocks; ++i) {
    const float2 y = key_sums_of<G, Sweep::kKeys>(walk.place, kMap, i / 2, i % 2);
    float(&c)[4] = d[i / 2][i % 2];
    c[0] -= y.x, c[1] -= y.y, c[2] -= y.x, c[3] -= y.y;
  }
  const float ones[2] = {1.f, 1.f};
  keys.template add_input_gradient<kMap>(dk, d, ones, 0);
}

/// s += <f(k), scaled f(q)> inside the chunk, not yet cut (first map: s = ...); dv += f(k) T. Once
/// products are finished; f becomes f(k).
template <typename G, int kMap>
__device__ __forceinline__ void begin_far_values(Block (&s)[kTiles], Block (&dv)[kSliceBlocks],
                                                 Fragment (&f)[G::kBlocks],
                                                 const OwnRows<G, Sweep::kKeys>& keys) {
#pragma unroll
  for (int b = 0; b < G::kBlocks; ++b) f[b] = keys.template features<kMap>(b);
  begin_columns<kMap != 0>(s, f, feature_tile<G, Sweep::kKeys, kMap>);
  begin_rows(dv, f, state_tile<G, Sweep::kKeys, kMap>);
}

}  // namespace fmmformer::cuda::chunks::warpgroup
