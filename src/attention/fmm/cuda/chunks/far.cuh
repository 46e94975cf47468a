// SPDX-License-Identifier: Apache-2.0
// The far fields of a warp's sixteen rows, map by map. The formulas are those of docs/math.md.
#pragma once

#include "attention/fmm/cuda/chunks/near.cuh"

namespace fmmformer::cuda::chunks {

__device__ __forceinline__ bool has_row_sums(const SweepArgs& args) {
  return args.normaliser == Normaliser::kRowSum;
}

/// a += weight * far_scale / norm * <f(q), f(k)>, inside the chunk; `factor` becomes what the rows
/// were multiplied by. Writes normalisers, [maps][length].
template <typename G, int kMap>
__device__ __forceinline__ void add_scores(Block (&a)[kTiles], float (&factor)[2],
                                           const Walk<G, Sweep::kForward>& walk,
                                           const Band<G, Sweep::kForward>& band,
                                           const Loader<G>& load, float weight) {
  using M = Memory<G, Sweep::kForward>;
  const SweepArgs& args = walk.args;
  constexpr int kFeatures = M::kFeatures + kMap * G::kArea;
  Block s[kTiles];
  float before[4] = {0.f, 0.f, 0.f, 0.f}, sum[2] = {0.f, 0.f};
  {
    Fragment f[G::kBlocks];
#pragma unroll
    for (int b = 0; b < G::kBlocks; ++b)
      f[b] = feature_block<G, kMap>(load, walk.own_tile(0), b);
    each_group<Reach::kFar>(walk, band, [&](int k, int tile) {
      multiply_columns<G>(s[k], f, load, kFeatures + tile * G::kTile);
      if (k == 0) cut_at_diagonal</*kBefore=*/false>(s[k]);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i % 4 / 2] += s[k][i / 4][i % 4];
    });
    if (has_row_sums(args)) {
#pragma unroll
      for (int b = 0; b < G::kBlocks; ++b)
        Bf16::multiply(before, f[b], KeySumOperands<G>::load(M::kKeySums, kMap, b));
    }
  }
  float norm[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    norm[r] = has_row_sums(args)
                  ? quad_sum(sum[r]) + before[2 * r] + before[2 * r + 1] + args.eps
                  : args.fixed_norm;
    factor[r] = __fdividef(weight * args.far_scale, norm[r]);
  }
  each_group<Reach::kFar>(walk, band, [&](int k, int) {
#pragma unroll
    for (int i = 0; i < 8; ++i) a[k][i / 4][i % 4] += factor[i % 4 / 2] * s[k][i / 4][i % 4];
  });
  if (!has_row_sums(args)) return;
  float* normalisers = args.normalisers + walk.place.row_index(args, G::kMaps, kMap);
  each_row_once(walk, [&](int r, int token) { normalisers[token] = norm[r]; });
}

/// out += factor * f(q) S, with the state before the chunk.
template <typename G, int kMap>
__device__ __forceinline__ void add_state_values(Block (&out)[kSliceBlocks],
                                                 const float (&factor)[2],
                                                 const Walk<G, Sweep::kForward>& walk,
                                                 const Loader<G>& load) {
  using M = Memory<G, Sweep::kForward>;
  const SplitFactor split[2] = {SplitFactor(factor[0]), SplitFactor(factor[1])};
#pragma unroll
  for (int b = 0; b < G::kBlocks; ++b) {
    Fragment f = feature_block<G, kMap>(load, walk.own_tile(0), b);
    scale_rows(f, split);
    add_columns<G>(out, f, load, M::kState + kMap * M::kStateOfMap + b * G::kTile,
                   walk.place.slice);
  }
}

/// rows[b] = (the warp's raw rows of own tensor 1) state^T, for this slice of feature channels.
template <typename G, Sweep kSweep>
__device__ __forceinline__ void multiply_state(Block (&rows)[kSliceBlocks], int map,
                                               const Walk<G, kSweep>& walk,
                                               const Loader<G>& load) {
  using M = Memory<G, kSweep>;
  const int state =
      M::kState + map * M::kStateOfMap + walk.place.slice * kSliceBlocks * G::kTile;
  clear(rows);
#pragma unroll
  for (int c = 0; c < G::kBlocks; ++c) {
    const Fragment own = load.left(walk.own_tile(1), c);
#pragma unroll
    for (int b = 0; b < kSliceBlocks; ++b)
      add_product(rows[b], own, load.right(state + b * G::kTile, c));
  }
}
/// The state's key sums of this lane's two columns of half n of block b.
template <typename G, Sweep kSweep>
__device__ __forceinline__ float2 key_sums_of(const Place<G>& place, int map, int b, int n) {
  const float* sums = shared_at<float>(Memory<G, kSweep>::kKeySums) + map * G::kDim;
  return *reinterpret_cast<const float2*>(sums + place.slice * kSlice + b * kBlockDim + n * 8 +
                                          lane_id() % 4 * 2);
}

/// What the query sweep knows of rows g and g + 8.
template <typename G>
struct QueryNumbers {
  float log_sum_exp[2], norm[G::kMaps][2], live[2];

  __device__ __forceinline__ explicit QueryNumbers(const Walk<G, Sweep::kQueries>& walk) {
    const SweepArgs& args = walk.args;
    const Place<G>& place = walk.place;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int token = min(walk.token(place.tile) + row_of(2 * r), args.length - 1);
      live[r] = walk.live_bits(place.tile) >> row_of(2 * r) & 1 ? 1.f : 0.f;
      log_sum_exp[r] =
          args.has_near ? args.log_sum_exp[place.row_index(args, 1, 0) + token] : 0.f;
#pragma unroll
      for (int l = 0; l < G::kMaps; ++l) {
        norm[l][r] = has_row_sums(args)
                         ? args.normalisers[place.row_index(args, G::kMaps, l) + token]
                         : args.fixed_norm;
      }
    }
  }
};

/// x of rows g and g + 8 summed over a row's columns, of all slices. `room`: which of the exchange
/// area's rows to use.
template <typename G>
__device__ __forceinline__ void sum_over_row(float (&x)[2], const Place<G>& place, int room) {
  x[0] = quad_sum(x[0]), x[1] = quad_sum(x[1]);
  if constexpr (G::kSlices > 1) {
    float* all = shared_at<float>(Memory<G, Sweep::kQueries>::kExchange) +
                 room * G::kWarps * kBlockDim;
    if (lane_id() % 4 == 0) {
      all[place.warp * kBlockDim + row_of(0)] = x[0];
      all[place.warp * kBlockDim + row_of(2)] = x[1];
    }
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

/// dq += the gradient of one map, from g = grad_out v^T; writes row dots to `dots`, [length].
/// Returns <dO, far field> of rows g and g + 8.
template <typename G, int kMap>
__device__ __forceinline__ float far_query(Block (&dq)[kSliceBlocks], const Block (&g)[kTiles],
                                           const Walk<G, Sweep::kQueries>& walk,
                                           const Band<G, Sweep::kQueries>& band,
                                           const Loader<G>& load, const QueryNumbers<G>& numbers,
                                           float weight, float* dots) {
  using M = Memory<G, Sweep::kQueries>;
  const SweepArgs& args = walk.args;
  const Place<G>& place = walk.place;
  constexpr int kFeatures = M::kFeatures + kMap * G::kArea;
  const int first_block = place.slice * kSliceBlocks;
  Block u[kSliceBlocks];
  float dot[2] = {0.f, 0.f};
  {
    Fragment f[kSliceBlocks];
#pragma unroll
    for (int b = 0; b < kSliceBlocks; ++b)
      f[b] = feature_block<G, kMap>(load, walk.own_tile(0), first_block + b);
    each_group<Reach::kFar>(walk, band, [&](int k, int tile) {
      Block s;
      clear(s);
#pragma unroll
      for (int b = 0; b < kSliceBlocks; ++b)
        add_product(s, f[b], load.right(kFeatures + tile * G::kTile, first_block + b));
      if (k == 0) cut_at_diagonal</*kBefore=*/false>(s);
#pragma unroll
      for (int i = 0; i < 8; ++i) dot[i % 4 / 2] += g[k][i / 4][i % 4] * s[i / 4][i % 4];
    });
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
    const float scale = numbers.live[r] * __fdividef(args.far_scale, numbers.norm[kMap][r]);
    by_weight += scale * dot[r];
    factor[r] = scale * weight;
    dot[r] = has_row_sums(args) ? numbers.live[r] * __fdividef(dot[r], numbers.norm[kMap][r]) : 0.f;
  }
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
  add_input_gradient<G, kMap>(dq, u, factor, load, walk.own_tile(0), first_block);
  return by_weight;
}

/// dk += the gradient of one map, from g = v grad_out^T.
template <typename G, int kMap>
__device__ __forceinline__ void far_key(Block (&dk)[kSliceBlocks], const Block (&g)[kTiles],
                                        const Walk<G, Sweep::kKeys>& walk,
                                        const Band<G, Sweep::kKeys>& band, const Loader<G>& load) {
  using M = Memory<G, Sweep::kKeys>;
  const Place<G>& place = walk.place;
  Block d[kSliceBlocks];
  multiply_state<G>(d, kMap, walk, load);
#pragma unroll
  for (int i = 0; i < 2 * kSliceBlocks; ++i) {
    const float2 y = key_sums_of<G, Sweep::kKeys>(place, kMap, i / 2, i % 2);
    float(&c)[4] = d[i / 2][i % 2];
    c[0] -= y.x, c[1] -= y.y, c[2] -= y.x, c[3] -= y.y;
  }
  each_group<Reach::kFar>(walk, band, [&](int k, int tile) {
    const float* dots = walk.numbers(kDot<G> + kMap, tile) + lane_id() % 4 * 2;
    Block m;
#pragma unroll
    for (int i = 0; i < 8; ++i) m[i / 4][i % 4] = g[k][i / 4][i % 4] - dots[i / 4 * 8 + i % 2];
    Fragment rounded_m = rounded(m);
    if (k == 0) cut_at_diagonal</*kBefore=*/true>(rounded_m);
    add_columns<G>(d, rounded_m, load, M::kFeatures + kMap * G::kArea + tile * G::kTile,
                   place.slice);
  });
  const float ones[2] = {1.f, 1.f};
  add_input_gradient<G, kMap>(dk, d, ones, load, walk.own_tile(0), place.slice * kSliceBlocks);
}

/// a += <f(k), scaled f(q)> inside the chunk, not yet cut at the diagonal; dv += f(k) T.
template <typename G, int kMap>
__device__ __forceinline__ void far_values(Block (&a)[kTiles], Block (&dv)[kSliceBlocks],
                                           const Walk<G, Sweep::kKeys>& walk,
                                           const Band<G, Sweep::kKeys>& band,
                                           const Loader<G>& load) {
  using M = Memory<G, Sweep::kKeys>;
  Fragment f[G::kBlocks];
#pragma unroll
  for (int b = 0; b < G::kBlocks; ++b) f[b] = feature_block<G, kMap>(load, walk.own_tile(0), b);
  each_group<Reach::kFar>(walk, band, [&](int k, int tile) {
#pragma unroll
    for (int b = 0; b < G::kBlocks; ++b)
      add_product(a[k], f[b],
                  load.right(M::kFeatures + kMap * G::kArea + tile * G::kTile, b));
  });
#pragma unroll
  for (int b = 0; b < G::kBlocks; ++b) {
    add_columns<G>(dv, f[b], load, M::kState + kMap * M::kStateOfMap + b * G::kTile,
                   walk.place.slice);
  }
}

}  // namespace fmmformer::cuda::chunks
