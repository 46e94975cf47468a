// SPDX-License-Identifier: Apache-2.0
// The far fields of a warp's sixteen rows, map by map. The formulas are those of docs/math.md.
#pragma once

#include "attention/fmm/cuda/chunks_fp32/near.cuh"

namespace fmmformer::cuda::chunks_fp32 {

/// a += weight * far_scale / norm * <f(q), f(k)>, inside the chunk; `factor` becomes what the rows
/// were multiplied by. Writes normalisers.
template <typename G, int l>
__device__ __forceinline__ void add_scores(Block (&a)[G::kGroups], float (&factor)[2],
                                           const FeatureRows<G>& f,
                                           const Walk<G, Sweep::kForward>& walk,
                                           const Loader<G>& load, float weight) {
  using M = Memory<G, Sweep::kForward>;
  const SweepArgs& args = walk.args;
  const int groups = far_groups(walk);
  Block s[G::kTiles];
  multiply_groups(
      s, [&](int b) { return split(f[b]); }, walk, groups, load,
      [&](int tile) { return walk.feature_tile(l, tile); });
  float norm[2] = {args.fixed_norm, args.fixed_norm};
  cut_at_diagonal</*kBefore=*/false>(s[0]);
  if (has_row_sums(args)) {
    float sum[2] = {0.f, 0.f};
    const float* z = shared_at(M::kKeySums + l * G::kDim) + lane_id() % 4;
#pragma unroll
    for (int i = 0; i < 8 * G::kBlocks; ++i)
      sum[i % 2] += f[i / 8][i / 4 % 2][i % 4] * z[i / 4 * 8 + i % 4 / 2 * 4];
    each_group<G::kTiles>(walk, groups, [&](int k, int) {
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i % 4 / 2] += s[k][i / 4][i % 4];
    });
    norm[0] = quad_sum(sum[0]) + args.eps, norm[1] = quad_sum(sum[1]) + args.eps;
    float* normalisers =
        args.normalisers + walk.place.row_index(args, args.all_maps, args.first_map + l);
    each_row_once(walk, [&](int r, int token) { normalisers[token] = norm[r]; });
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) factor[r] = __fdividef(weight * args.far_scale, norm[r]);
  each_group<G::kTiles>(walk, groups, [&](int k, int) {
#pragma unroll
    for (int i = 0; i < 8; ++i) a[k][i / 4][i % 4] += factor[i % 4 / 2] * s[k][i / 4][i % 4];
  });
}

/// rows += factor * f S, with the state before the chunk (or after it, where rows are keys).
template <typename G, int l, Sweep kSweep>
__device__ __forceinline__ void add_state_values(Block (&rows)[kSliceBlocks],
                                                 const float (&factor)[2], const FeatureRows<G>& f,
                                                 const Walk<G, kSweep>& walk,
                                                 const Loader<G>& load) {
  using M = Memory<G, kSweep>;
#pragma unroll
  for (int b = 0; b < G::kBlocks; ++b) {
    Values scaled;
#pragma unroll
    for (int i = 0; i < 8; ++i) scaled[i / 4][i % 4] = factor[i % 2] * f[b][i / 4][i % 4];
    Operand columns[kSliceBlocks];
#pragma unroll
    for (int n = 0; n < kSliceBlocks; ++n) {
      columns[n] = load.state_columns(M::kState + l * M::kStateOfMap + b * kBlockDim * G::kDim,
                                      walk.place.slice * kSliceBlocks + n);
    }
    add_products(rows, split(scaled), columns);
  }
}

/// rows = (the warp's raw rows of own tensor 1) state^T, for this slice of feature channels.
template <typename G, Sweep kSweep>
__device__ __forceinline__ void multiply_state(Block (&rows)[kSliceBlocks], int map,
                                               const Walk<G, kSweep>& walk, const Loader<G>& load) {
  using M = Memory<G, kSweep>;
  const int state = M::kState + map * M::kStateOfMap + walk.place.slice * kSlice * G::kDim;
  clear(rows);
#pragma unroll
  for (int c = 0; c < G::kBlocks; ++c) {
    Operand columns[kSliceBlocks];
#pragma unroll
    for (int b = 0; b < kSliceBlocks; ++b)
      columns[b] = load.state(state + b * kBlockDim * G::kDim, c);
    add_products(rows, load.plain(walk.own_tile(1), c), columns);
  }
}

/// x of rows g and g + 8 summed over a row's columns, of all slices. `room`: which of the exchange
/// area's rows to use.
template <typename G>
__device__ __forceinline__ void sum_over_row(float (&x)[2], const Place<G>& place, int room) {
  float* of_tile = shared_at(Memory<G, Sweep::kQueries>::kExchange) +
                   (room * G::kTiles + place.tile) * G::kSlices * kBlockDim;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sum = quad_sum(x[r]);
    if (lane_id() % 4 == 0) of_tile[place.slice * kBlockDim + row_of(2 * r)] = sum;
    x[r] = 0.f;
  }
  place.meet_slices();
#pragma unroll
  for (int i = 0; i < 2 * G::kSlices; ++i)
    x[i % 2] += of_tile[i / 2 * kBlockDim + row_of(i % 2 * 2)];
}

/// Ones for the columns of a group that rows see, paired: all, or those up to the diagonal.
__device__ __forceinline__ void seen_columns(uint32_t (&ones)[2][4], bool diagonal) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int row = row_of(i % 2 * 2), column = column_of(i / 4, i % 4 / 2);
    ones[i / 4][i % 4] = diagonal && column > row ? 0u : __float_as_uint(1.f);
  }
}

/// dq += the gradient of one map, from g = grad_out v^T; writes row dots.
/// Returns <dO, far field> of rows g and g + 8.
template <typename G, int l>
__device__ __forceinline__ float far_query(Block (&dq)[kSliceBlocks], const Block (&g)[G::kGroups],
                                           const Walk<G, Sweep::kQueries>& walk,
                                           const Loader<G>& load, float weight) {
  using S = State<G, Sweep::kQueries>;
  const SweepArgs& args = walk.args;
  const Place<G>& place = walk.place;
  const bool row_sums = has_row_sums(args);
  Block u[kSliceBlocks], z[kSliceBlocks];  // sum_j G_ij f(k_j), sum_j f(k_j)
  multiply_state<G>(u, l, walk, load);
#pragma unroll
  for (int n = 0; n < 2 * kSliceBlocks; ++n) {
    const float2 before = S::key_sums_of(l, place.slice, n);
    float(&c)[4] = z[n / 2][n % 2];
    c[0] = c[2] = before.x, c[1] = c[3] = before.y;
  }
  each_group<G::kTiles>(walk, far_groups(walk), [&](int k, int tile) {
    Operand columns[kSliceBlocks];
#pragma unroll
    for (int b = 0; b < kSliceBlocks; ++b)
      columns[b] = load.paired(walk.feature_tile(l, tile), place.slice * kSliceBlocks + b);
    Block m;
#pragma unroll
    for (int i = 0; i < 8; ++i) m[i / 4][i % 4] = g[k][i / 4][i % 4];
    if (k == 0) cut_at_diagonal</*kBefore=*/false>(m);
    add_products(u, split_result(m), columns);
    if (row_sums) {
      uint32_t seen[2][4];
      seen_columns(seen, k == 0);
      add_exact_products(z, seen, columns);
    }
  });
  float dot[2] = {0.f, 0.f}, norm[2] = {args.fixed_norm, args.fixed_norm}, factor[2];
  if (row_sums) load_numbers(norm, walk, args.normalisers, args.all_maps, args.first_map + l);
  each_own_number(walk, [&](int n, int i, float x) {
    dot[i / 2] += u[n / 2][n % 2][i] * feature_of<kMapOf<G, l>>(x, decay_of(x));
  });
  sum_over_row<G>(dot, place, l);
  float by_weight = 0.f;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool live = walk.live_bits(place.tile) >> row_of(2 * r) & 1;
    const float inverse = live ? __fdividef(1.f, norm[r]) : 0.f, scale = args.far_scale * inverse;
    by_weight += scale * dot[r];
    factor[r] = scale * weight;
    dot[r] = row_sums ? dot[r] * inverse : 0.f;
  }
  float* dots = args.row_dots + place.row_index(args, args.all_maps + 1, args.first_map + l);
  each_row_once(walk, [&](int r, int token) { dots[token] = dot[r]; });
#pragma unroll
  for (int i = 0; i < 8 * kSliceBlocks; ++i) {
    const int r = i % 4 / 2;
    float& to = u[i / 8][i / 4 % 2][i % 4];
    to = factor[r] * (to - dot[r] * z[i / 8][i / 4 % 2][i % 4]);
  }
  add_input_gradient<G, l>(dq, u, walk);
  return by_weight;
}

/// dk += the gradient of one map, from g = v grad_out^T.
template <typename G, int l>
__device__ __forceinline__ void far_key(Block (&dk)[kSliceBlocks], const Block (&g)[G::kGroups],
                                        const Walk<G, Sweep::kKeys>& walk, const Loader<G>& load) {
  using S = State<G, Sweep::kKeys>;
  const Place<G>& place = walk.place;
  Block d[kSliceBlocks];
  multiply_state<G>(d, l, walk, load);
#pragma unroll
  for (int n = 0; n < 2 * kSliceBlocks; ++n) {
    const float2 y = S::key_sums_of(l, place.slice, n);
    float(&c)[4] = d[n / 2][n % 2];
    c[0] -= y.x, c[1] -= y.y, c[2] -= y.x, c[3] -= y.y;
  }
  each_group<G::kTiles>(walk, far_groups(walk), [&](int k, int tile) {
    float2 dots[2];
    S::column_numbers(dots, walk.numbers(kDot<G> + l, tile));
    Block m;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      m[i / 4][i % 4] = g[k][i / 4][i % 4] - (i % 2 ? dots[i / 4].y : dots[i / 4].x);
    if (k == 0) cut_at_diagonal</*kBefore=*/true>(m);
    add_columns<G>(d, split_result(m), load, walk.feature_tile(l, tile), place.slice);
  });
  add_input_gradient<G, l>(dk, d, walk);
}

/// a += <f(k), scaled f(q)> inside the chunk; dv += f(k) T.
template <typename G, int l>
__device__ __forceinline__ void far_values(Block (&a)[G::kGroups], Block (&dv)[kSliceBlocks],
                                           const Walk<G, Sweep::kKeys>& walk,
                                           const Loader<G>& load) {
  FeatureRows<G> f;
  own_features<G, l>(f, walk, load);
  const int groups = far_groups(walk);
  Block s[G::kTiles];
  multiply_groups(
      s, [&](int b) { return split(f[b]); }, walk, groups, load,
      [&](int tile) { return walk.feature_tile(l, tile); });
  cut_at_diagonal</*kBefore=*/true>(s[0]);
  each_group<G::kTiles>(walk, groups, [&](int k, int) {
#pragma unroll
    for (int i = 0; i < 8; ++i) a[k][i / 4][i % 4] += s[k][i / 4][i % 4];
  });
  const float ones[2] = {1.f, 1.f};
  add_state_values<G, l>(dv, ones, f, walk, load);
}

}  // namespace fmmformer::cuda::chunks_fp32
