// SPDX-License-Identifier: Apache-2.0
// The far fields of a warp's sixteen rows, map by map. The formulas are those of docs/math.md.
#pragma once

#include "attention/fmm/cuda/chunks_fp32/near.cuh"

namespace fmmformer::cuda::chunks_fp32 {

/// scores = <f, columns> inside the chunk for one map's features f of the warp's own rows, and
/// rows = f S for this slice, with the state before the chunk (or after it, where rows are keys);
/// both with the shifts of f, of rows g and g + 8, and of the other.
template <typename G, Sweep kSweep>
__device__ __forceinline__ void multiply_features(Block (&scores)[G::kTiles],
                                                  Block (&rows)[kSliceBlocks], int (&shift)[2],
                                                  int l, const Walk<G, kSweep>& walk,
                                                  const Loader<G>& load) {
  using M = Memory<G, kSweep>;
  const int state = M::kState + l * M::kStateOfMap;
  make_own_features(shift, l, walk);
  clear(rows);
  const auto features = [&](int s) { return load.left(walk.own_tile(1), s); };
  const auto add_state = [&](int s, const Left& f) {
    Right columns[kSliceBlocks];
#pragma unroll
    for (int n = 0; n < kSliceBlocks; ++n) {
      columns[n] =
          load.turned_state(state + s * kBlockDim * G::kDim, walk.place.slice * kSliceBlocks + n);
    }
    add_products(rows, f, columns);
  };
  // The last slice first: the near field, of three groups, begins with the first one.
  const int mine = G::kShares ? G::kSlices - 1 - walk.place.slice : 0;
  multiply_groups(
      scores, features, walk, far_groups(walk), mine, load,
      [&](int tile) { return walk.feature_tile(l, tile); }, add_state);
  cut_at_diagonal<kSweep == Sweep::kKeys>(scores[0]);
}

/// a += weight * far_scale / norm * <f(q), f(k)>, inside the chunk; out += what the state before it
/// yields. Writes normalisers.
template <typename G>
__device__ __forceinline__ void far_forward(Block (&a)[G::kGroups], Block (&out)[kSliceBlocks],
                                            int l, const Walk<G, Sweep::kForward>& walk,
                                            const Loader<G>& load, float weight) {
  using M = Memory<G, Sweep::kForward>;
  const SweepArgs& args = walk.args;
  Block s[G::kTiles];
  Block rows[kSliceBlocks];
  float norm[2] = {args.fixed_norm, args.fixed_norm}, factor[2];
  int shift[2];
  multiply_features<G>(s, rows, shift, l, walk, load);
  float score_scale[2], state_scale[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    score_scale[r] = power_of_2(-shift[r] - walk.shift(kFeatureRows + l));
    state_scale[r] = power_of_2(-shift[r] - Scaling<M>::state_shift(l));
  }
  const int groups = far_groups(walk);
  if (has_row_sums(args)) {
    float inside[2] = {0.f, 0.f};
    each_group<G::kTiles>(walk, groups, [&](int k, int) {
#pragma unroll
      for (int i = 0; i < 8; ++i) inside[i % 4 / 2] += s[k][i / 4][i % 4];
    });
    walk.own_numbers(norm, 0);
#pragma unroll
    for (int r = 0; r < 2; ++r) norm[r] += score_scale[r] * quad_sum(inside[r]) + args.eps;
    float* normalisers =
        args.normalisers + walk.place.row_index(args, args.all_maps, args.first_map + l);
    each_row_once(walk, [&](int r, int token) { normalisers[token] = norm[r]; });
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    factor[r] = __fdividef(weight * args.far_scale, norm[r]);
    score_scale[r] *= factor[r], state_scale[r] *= factor[r];
  }
  each_group<G::kTiles>(walk, groups, [&](int k, int) {
#pragma unroll
    for (int i = 0; i < 8; ++i) a[k][i / 4][i % 4] += score_scale[i % 4 / 2] * s[k][i / 4][i % 4];
  });
#pragma unroll
  for (int i = 0; i < 8 * kSliceBlocks; ++i) {
    const Block& from = rows[i / 8];
    out[i / 8][i / 4 % 2][i % 4] += state_scale[i % 4 / 2] * from[i / 4 % 2][i % 4];
  }
}

/// rows += (the warp's raw rows of own tensor 1) state^T, for this slice of feature channels.
template <typename G, Sweep kSweep>
__device__ __forceinline__ void add_state_product(Block (&rows)[kSliceBlocks], int map,
                                                  const Walk<G, kSweep>& walk,
                                                  const Loader<G>& load) {
  using M = Memory<G, kSweep>;
  const int state = M::kState + map * M::kStateOfMap + walk.place.slice * kSlice * G::kDim;
  Block sums[kSliceBlocks];
  clear(sums);
#pragma unroll 4
  for (int c = 0; c < G::kBlocks; ++c) {
    Right columns[kSliceBlocks];
#pragma unroll
    for (int b = 0; b < kSliceBlocks; ++b)
      columns[b] = load.state(state + b * kBlockDim * G::kDim, c);
    add_products(sums, load.left(walk.own_tile(1), c), columns);
  }
  add_totals(rows, sums, power_of_2(-walk.shift(kOwnRows + 1) - Scaling<M>::state_shift(map)));
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

/// Ones for the columns of a group that rows see: all, or those up to the diagonal.
__device__ __forceinline__ void seen_columns(uint32_t (&ones)[4], bool diagonal) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = row_of(i % 2 * 2), column = column_of(i / 2, 0);
    const uint32_t low = column > row ? 0u : 0xffffu, high = column + 1 > row ? 0u : 0xffff0000u;
    ones[i] = diagonal ? kHalfOnes & (low | high) : kHalfOnes;
  }
}
/// What brings products of grad_out and v, with their shift, into the range of operands.
template <typename G>
__device__ __forceinline__ float product_to_operand() {
  return power_of_2(kTop - kProductBits<G>);
}

/// dq += the gradient of one map, from g = grad_out v^T with its shift; writes row dots.
/// Returns <dO, far field> of rows g and g + 8.
template <typename G>
__device__ __forceinline__ float far_query(Block (&dq)[kSliceBlocks], const Block (&g)[G::kGroups],
                                           int l, const Walk<G, Sweep::kQueries>& walk,
                                           const Loader<G>& load, float weight) {
  using S = State<G, Sweep::kQueries>;
  const SweepArgs& args = walk.args;
  const Place<G>& place = walk.place;
  const bool row_sums = has_row_sums(args);
  Block u[kSliceBlocks], z[kSliceBlocks];  // sum_j G_ij f(k_j), sum_j f(k_j)
  clear(u);
  add_state_product<G>(u, l, walk, load);
  Block u_sums[kSliceBlocks], z_sums[kSliceBlocks];
  clear(u_sums), clear(z_sums);
  each_group<G::kTiles>(walk, far_groups(walk), [&](int k, int tile) {
    Right columns[kSliceBlocks];
#pragma unroll
    for (int b = 0; b < kSliceBlocks; ++b)
      columns[b] = load.turned_right(walk.feature_tile(l, tile), place.slice * kSliceBlocks + b);
    Block m;
#pragma unroll
    for (int i = 0; i < 8; ++i) m[i / 4][i % 4] = g[k][i / 4][i % 4];
    if (k == 0) cut_at_diagonal</*kBefore=*/false>(m);
    add_products(u_sums, split_result(m, product_to_operand<G>()), columns);
    if (row_sums) {
      uint32_t seen[4];
      seen_columns(seen, k == 0);
      add_exact_products(z_sums, seen, columns);
    }
  });
#pragma unroll
  for (int n = 0; n < 2 * kSliceBlocks; ++n) {
    const float2 before = S::key_sums_of(l, place.slice, n);
    float(&c)[4] = z[n / 2][n % 2];
    c[0] = c[2] = before.x, c[1] = c[3] = before.y;
  }
  const int shift = walk.shift(kFeatureRows + l);
  add_totals(u, u_sums, power_of_2(-shift - product_shift(walk) + kProductBits<G> - kTop));
  add_totals(z, z_sums, power_of_2(-shift));
  float dot[2] = {0.f, 0.f}, norm[2] = {args.fixed_norm, args.fixed_norm}, factor[2];
  if (row_sums) walk.own_numbers(norm, kNorm + l);
  Block f[kSliceBlocks];
  with_paper_map<G>(args.feature_maps[l], [&](auto feature, auto) {
    each_own_number(walk, [&](int n, int i, float x, float e) {
      f[n / 2][n % 2][i] = feature(x, e);
      dot[i / 2] += u[n / 2][n % 2][i] * f[n / 2][n % 2][i];
    });
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
  with_paper_map<G>(args.feature_maps[l], [&](auto, auto slope) {
#pragma unroll
    for (int i = 0; i < 8 * kSliceBlocks; ++i) {
      const int b = i / 8, n = i / 4 % 2, r = i % 4 / 2;
      dq[b][n][i % 4] +=
          factor[r] * (u[b][n][i % 4] - dot[r] * z[b][n][i % 4]) * slope(f[b][n][i % 4]);
    }
  });
  return by_weight;
}

/// dk += the gradient of one map, from g = v grad_out^T with its shift.
template <typename G>
__device__ __forceinline__ void far_key(Block (&dk)[kSliceBlocks], const Block (&g)[G::kGroups],
                                        int l, const Walk<G, Sweep::kKeys>& walk,
                                        const Loader<G>& load) {
  using S = State<G, Sweep::kKeys>;
  const Place<G>& place = walk.place;
  Block d[kSliceBlocks];
#pragma unroll
  for (int n = 0; n < 2 * kSliceBlocks; ++n) {
    const float2 y = S::key_sums_of(l, place.slice, n);
    float(&c)[4] = d[n / 2][n % 2];
    c[0] = c[2] = -y.x, c[1] = c[3] = -y.y;
  }
  add_state_product<G>(d, l, walk, load);
  const int shift = shift_for(largest_product(walk) + walk.maximum(kDots + l));
  const float g_scale = power_of_2(shift - product_shift(walk)), dot_scale = power_of_2(shift);
  Block sums[kSliceBlocks];
  clear(sums);
  each_group<G::kTiles>(walk, far_groups(walk), [&](int k, int tile) {
    float2 dots[2];
    S::column_numbers(dots, walk.numbers(kDot<G> + l, tile));
    Block m;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      m[i / 4][i % 4] =
          g_scale * g[k][i / 4][i % 4] - dot_scale * (i % 2 ? dots[i / 4].y : dots[i / 4].x);
    if (k == 0) cut_at_diagonal</*kBefore=*/true>(m);
    add_columns<G>(sums, split_result(m, 1.f), load, walk.feature_tile(l, tile), place.slice);
  });
  add_totals(d, sums, power_of_2(-shift - walk.shift(kFeatureRows + l)));
  add_input_gradient<G>(dk, d, walk.args.feature_maps[l], walk);
}

/// a += <f(k), scaled f(q)> inside the chunk; dv += f(k) T.
template <typename G>
__device__ __forceinline__ void far_values(Block (&a)[G::kGroups], Block (&dv)[kSliceBlocks], int l,
                                           const Walk<G, Sweep::kKeys>& walk,
                                           const Loader<G>& load) {
  Block s[G::kTiles];
  Block rows[kSliceBlocks];
  using M = Memory<G, Sweep::kKeys>;
  int shifts[2];
  multiply_features<G>(s, rows, shifts, l, walk, load);
  const int shift = shifts[0];
  const float score_scale = power_of_2(-shift - walk.shift(kFeatureRows + l));
  each_group<G::kTiles>(walk, far_groups(walk), [&](int k, int) {
#pragma unroll
    for (int i = 0; i < 8; ++i) a[k][i / 4][i % 4] += score_scale * s[k][i / 4][i % 4];
  });
  add_totals(dv, rows, power_of_2(-shift - Scaling<M>::state_shift(l)));
}

/// What a query's weights of values are at most, of all fields together. Normalised, a field's add
/// up to its weight.
template <typename G, Sweep kSweep>
__device__ __forceinline__ float largest_score(const Walk<G, kSweep>& walk,
                                               const Weights<G>& weights) {
  const SweepArgs& args = walk.args;
  float sum = args.has_near ? fabsf(weights.of[G::kMaps]) * args.keep_factor : 0.f;
#pragma unroll
  for (int l = 0; l < G::kMaps; ++l) {
    float largest = fabsf(weights.of[l] * args.far_scale);
    if (!has_row_sums(args)) {
      const float product = G::kDim * walk.largest_own_feature() * walk.largest_feature(l);
      largest = kSweep == Sweep::kKeys ? product : __fdividef(largest * product, args.fixed_norm);
    }
    sum += largest;
  }
  return sum;
}

}  // namespace fmmformer::cuda::chunks_fp32
