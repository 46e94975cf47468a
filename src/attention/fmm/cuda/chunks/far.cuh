// SPDX-License-Identifier: Apache-2.0
// The far fields of a warp's sixteen rows, map by map. The formulas are those of docs/math.md.
#pragma once

#include "attention/fmm/cuda/chunks/near.cuh"

namespace fmmformer::cuda::chunks {

__device__ __forceinline__ bool has_row_sums(const SweepArgs& args) {
  return args.normaliser == Normaliser::kRowSum;
}

/// a += weight * far_scale / norm * <f(q), f(k)>, inside the chunk (first map: a = ...); `factor`
/// becomes what the rows were multiplied by. features(b): the queries'. Writes normalisers.
template <typename G, int kMap, typename Features>
__device__ __forceinline__ void add_scores(Block (&a)[kTiles], float (&factor)[2],
                                           const Features& features,
                                           const Walk<G, Sweep::kForward>& walk,
                                           const Band<G, Sweep::kForward>& band,
                                           const Loader<G>& load, float weight) {
  using M = Memory<G, Sweep::kForward>;
  const SweepArgs& args = walk.args;
  Block s[kTiles];
  float before[4] = {0.f, 0.f, 0.f, 0.f}, sum[2] = {0.f, 0.f}, norm[2];
  const auto place_of = [](int tile) { return M::kFeatures + kMap * G::kArea + tile * G::kTile; };
  const auto rows = [&](int b) {
    const Fragment f = features(b);
    Bf16::multiply(before, f, KeySumOperands<G>::load(M::kKeySums, kMap, b));
    return f;
  };
  const auto add_sum = [&](int k, int, bool seen) {
    if (k == 0) cut_at_diagonal</*kBefore=*/false>(s[k]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float of_group =
          (s[k][0][2 * r] + s[k][0][2 * r + 1]) + (s[k][1][2 * r] + s[k][1][2 * r + 1]);
      sum[r] += seen ? of_group : 0.f;
    }
  };
  multiply_groups<Reach::kFar, G::kBlocks>(s, rows, walk, band, load, 0, place_of, add_sum);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    norm[r] = has_row_sums(args) ? quad_sum(sum[r]) + before[2 * r] + before[2 * r + 1] + args.eps
                                 : args.fixed_norm;
    factor[r] = __fdividef(weight * args.far_scale, norm[r]);
  }
#pragma unroll
  for (int k = 0; k < kTiles; ++k) {
    const bool seen = k <= last_group<Reach::kFar>(walk, band);
    const float here[2] = {seen ? factor[0] : 0.f, seen ? factor[1] : 0.f};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& to = a[k][i / 4][i % 4];
      const float score = here[i % 4 / 2] * s[k][i / 4][i % 4];
      to = kMap == 0 ? score : to + score;
    }
  }
  if (!has_row_sums(args)) return;
  float* normalisers = args.normalisers + walk.place.row_index(args, G::kMaps, kMap);
  each_row_once(walk, [&](int r, int token) { normalisers[token] = norm[r]; });
}

/// out += factor * f(q) S, with the state before the chunk.
template <typename G, int kMap, typename Features>
__device__ __forceinline__ void add_state_values(Block (&out)[kSliceBlocks],
                                                 const float (&factor)[2], const Features& features,
                                                 const Walk<G, Sweep::kForward>& walk,
                                                 const Loader<G>& load) {
  using M = Memory<G, Sweep::kForward>;
  const SplitFactor split[2] = {SplitFactor(factor[0]), SplitFactor(factor[1])};
#pragma unroll
  for (int b = 0; b < G::kBlocks; ++b) {
    Fragment f = features(b);
    scale_rows(f, split);
    add_columns<G>(out, f, load, M::kState + kMap * M::kStateOfMap + b * G::kTile,
                   walk.place.slice);
  }
}

/// rows[b] = (the warp's raw rows of own tensor 1) state^T, for this slice of feature channels.
template <typename G, Sweep kSweep>
__device__ __forceinline__ void multiply_state(Block (&rows)[kSliceBlocks], int map,
                                               const Walk<G, kSweep>& walk, const Loader<G>& load) {
  using M = Memory<G, kSweep>;
  const int state = M::kState + map * M::kStateOfMap + walk.place.slice * kSliceBlocks * G::kTile;
#pragma unroll
  for (int c = 0; c < G::kBlocks; ++c) {
    const Fragment own = load.left(walk.own_tile(1), c);
#pragma unroll
    for (int b = 0; b < kSliceBlocks; ++b) {
      const Fragment right = load.right(state + b * G::kTile, c);
      if (c == 0) set_product(rows[b], own, right);
      if (c != 0) add_product(rows[b], own, right);
    }
  }
}
/// The state's key sums of this lane's two columns of half n of block b.
template <typename G, Sweep kSweep>
__device__ __forceinline__ float2 key_sums_of(const Place<G>& place, int map, int b, int n) {
  const float* sums = shared_at<float>(Memory<G, kSweep>::kKeySums) + map * G::kDim;
  return *reinterpret_cast<const float2*>(sums + place.slice * kSlice + b * kBlockDim + n * 8 +
                                          lane_id() % 4 * 2);
}

/// x of rows g and g + 8 summed over a row's columns, of all slices. `room`: which of the exchange
/// area's rows to use.
template <typename G>
__device__ __forceinline__ void sum_over_row(float (&x)[2], const Place<G>& place, int room) {
  x[0] = quad_sum(x[0]), x[1] = quad_sum(x[1]);
  if constexpr (G::kSlices > 1) {
    float* all =
        shared_at<float>(Memory<G, Sweep::kQueries>::kExchange) + room * G::kWarps * kBlockDim;
    float* mine = all + (place.slice * kTiles + place.tile) * kBlockDim;
    if (lane_id() % 4 == 0) mine[row_of(0)] = x[0], mine[row_of(2)] = x[1];
    place.meet_slices();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      x[r] = 0.f;
#pragma unroll
      for (int slice = 0; slice < G::kSlices; ++slice)
        x[r] += all[(slice * kTiles + place.tile) * kBlockDim + row_of(2 * r)];
    }
  }
}

/// dq += the gradient of one map, from g = grad_out v^T; writes row dots.
/// Returns <dO, far field> of rows g and g + 8.
template <typename G, int kMap>
__device__ __forceinline__ float far_query(Block (&dq)[kSliceBlocks], const Block (&g)[kTiles],
                                           const Walk<G, Sweep::kQueries>& walk,
                                           const Band<G, Sweep::kQueries>& band,
                                           const OwnRows<G, Sweep::kQueries>& q, float weight) {
  using M = Memory<G, Sweep::kQueries>;
  const SweepArgs& args = walk.args;
  const Place<G>& place = walk.place;
  const Loader<G>& load = q.load;
  constexpr int kFeatures = M::kFeatures + kMap * G::kArea;
  const int first_block = place.slice * kSliceBlocks;
  Block u[kSliceBlocks];
  float norm[2] = {args.fixed_norm, args.fixed_norm}, dot[2] = {0.f, 0.f};
  if (has_row_sums(args)) walk.own_numbers(norm, kNorm<G> + kMap);
  {
    Fragment f[kSliceBlocks];
#pragma unroll
    for (int b = 0; b < kSliceBlocks; ++b) f[b] = q.template features<kMap>(first_block + b);
    Block s[kTiles];
    const auto place_of = [](int tile) { return kFeatures + tile * G::kTile; };
    const auto add_dot = [&](int k, int, bool seen) {
      if (k == 0) cut_at_diagonal</*kBefore=*/false>(s[k]);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float of_group = 0.f;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int n = i / 2, at = 2 * r + i % 2;
          of_group += g[k][n][at] * s[k][n][at];
        }
        dot[r] += seen ? of_group : 0.f;
      }
    };
    multiply_groups<Reach::kFar, kSliceBlocks>(
        s, [&](int b) { return f[b]; }, walk, band, load, first_block, place_of, add_dot);
    multiply_state<G>(u, kMap, walk, load);
#pragma unroll
    for (int b = 0; b < kSliceBlocks; ++b) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float low, high;
        Bf16::unpack(f[b].r[j], low, high);
        dot[j % 2] += low * u[b][j / 2][j % 2 * 2] + high * u[b][j / 2][j % 2 * 2 + 1];
      }
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
  each_group<Reach::kFar>(walk, band, [&](int k, int tile) {
    Block m;
#pragma unroll
    for (int i = 0; i < 8; ++i) m[i / 4][i % 4] = g[k][i / 4][i % 4] - dot[i % 4 / 2];
    Fragment rounded_m = rounded(m);
    if (k == 0) cut_at_diagonal</*kBefore=*/false>(rounded_m);
    add_columns<G>(u, rounded_m, load, kFeatures + tile * G::kTile, place.slice);
  });
  q.template add_input_gradient<kMap>(dq, u, factor, first_block);
  return by_weight;
}

/// dk += the gradient of one map, from g = v grad_out^T.
template <typename G, int kMap>
__device__ __forceinline__ void far_key(Block (&dk)[kSliceBlocks], const Block (&g)[kTiles],
                                        const Walk<G, Sweep::kKeys>& walk,
                                        const Band<G, Sweep::kKeys>& band,
                                        const OwnRows<G, Sweep::kKeys>& keys) {
  using M = Memory<G, Sweep::kKeys>;
  const Place<G>& place = walk.place;
  const Loader<G>& load = keys.load;
  Block d[kSliceBlocks];
  multiply_state<G>(d, kMap, walk, load);
#pragma unroll
  for (int i = 0; i < 2 * kSliceBlocks; ++i) {
    const float2 y = key_sums_of<G, Sweep::kKeys>(place, kMap, i / 2, i % 2);
    float(&c)[4] = d[i / 2][i % 2];
    c[0] -= y.x, c[1] -= y.y, c[2] -= y.x, c[3] -= y.y;
  }
  each_group<Reach::kFar>(walk, band, [&](int k, int tile) {
    float2 dots[2];
    column_numbers(dots, walk.numbers(kDot<G> + kMap, tile));
    Block m;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      m[i / 4][i % 4] = g[k][i / 4][i % 4] - (i % 2 ? dots[i / 4].y : dots[i / 4].x);
    Fragment rounded_m = rounded(m);
    if (k == 0) cut_at_diagonal</*kBefore=*/true>(rounded_m);
    add_columns<G>(d, rounded_m, load, M::kFeatures + kMap * G::kArea + tile * G::kTile,
                   place.slice);
  });
  const float ones[2] = {1.f, 1.f};
  keys.template add_input_gradient<kMap>(dk, d, ones, place.slice * kSliceBlocks);
}

/// a += <f(k), scaled f(q)> inside the chunk (first map: a = ...), not yet cut at the diagonal;
/// dv += f(k) T.
template <typename G, int kMap>
__device__ __forceinline__ void far_values(Block (&a)[kTiles], Block (&dv)[kSliceBlocks],
                                           const Walk<G, Sweep::kKeys>& walk,
                                           const Band<G, Sweep::kKeys>& band,
                                           const OwnRows<G, Sweep::kKeys>& keys) {
  using M = Memory<G, Sweep::kKeys>;
  const Loader<G>& load = keys.load;
  const auto place_of = [](int tile) { return M::kFeatures + kMap * G::kArea + tile * G::kTile; };
  const auto rows = [&](int b) {
    const Fragment f = keys.template features<kMap>(b);
    add_columns<G>(dv, f, load, M::kState + kMap * M::kStateOfMap + b * G::kTile, walk.place.slice);
    return f;
  };
  Block s[kTiles];
  const auto add_group = [&](int k, int, bool seen) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& to = a[k][i / 4][i % 4];
      const float here = seen ? s[k][i / 4][i % 4] : 0.f;
      to = kMap == 0 ? here : to + here;
    }
  };
  multiply_groups<Reach::kFar, G::kBlocks>(s, rows, walk, band, load, 0, place_of, add_group);
}

}  // namespace fmmformer::cuda::chunks
