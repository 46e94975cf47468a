// SPDX-License-Identifier: Apache-2.0
// Far fields of a warp's 32 tokens, forward and the queries' side of backward. The formulas are
// those of docs/math.md; S is the state before the warp's tokens.
#pragma once

#include "attention/fmm/cuda/whole/states.cuh"

namespace fmmformer::cuda::whole {

/// Sums over the warp's keys, with the features' channels as rows or v's;
/// use(map, tile, features, turned) sees their rows, zeros for dead ones.
template <bool kKeysAreRows, typename G, typename Use>
__device__ __forceinline__ void sum_keys(const Sequence<G>& at, const States<G>& states,
                                         const Use& use) {
  each_map<G>([&](auto map) {
    OwnSums<G> sums;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      Fragments<G> x, turned_x, values;
      Inputs<G>(at.rows(kKeys, tile)).features(map, x);
      strips::keep_live(x, at.live(tile));
      strips::turn(turned_x, x);
      load_turned<G, kKeysAreRows ? Side::kRight : Side::kAny>(values, at.rows(kValues, tile));
      if (kKeysAreRows) sums.add(tile == 0, turned_x, values);
      if (!kKeysAreRows) sums.add(tile == 0, values, turned_x);
      sums.add_rows(tile == 0, turned_x, {{kOnes, kOnes}});
      if (G::kBackward && tile == 0)
        sums.store_rows(states.first_rows(index_of(map)).sums);
      use(map, tile, x, turned_x);
    }
    states.store(index_of(map), sums);
  });
}
template <typename G>
__device__ __forceinline__ void copy_fragments(Fragments<G>& to, const Fragments<G>& from) {
#pragma unroll
  for (int s = 0; s < G::kBlocks; ++s) to[s] = from[s];
}

/// The state after the last token goes to args.made: numbers from i on.
template <typename G>
__device__ void store_made(const Sequence<G>& at, int i, const float (&sum)[4]) {
  const cuda::States& made = at.args.made;
  const int map = at.args.first_map + i / G::kStateSize, in_map = i % G::kStateSize;
  const int64_t entry = (int64_t(at.pair) * made.maps + map) * G::kDim;
  const int lane = in_map / 4 % kWarpSize, half = in_map / 128 % 2, block = in_map / 256;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int value = block / G::kBlocks * kBlockDim + lane / 4 + j / 2 * 8,
              feature = block % G::kBlocks * kBlockDim + half * 8 + lane % 4 * 2 + j % 2;
    if (in_map >= G::kImage)
      made.key_sums[entry + in_map - G::kImage + j] = sum[j];
    else
      made.sums[(entry + feature) * made.row_length + value] = sum[j];
  }
}

/// out[tile] += weight * far fields; writes normalisers, [maps][length]. Barriers inside.
template <typename G>
__device__ __forceinline__ void far_forward(const Sequence<G>& at, float* normalisers,
                                            Blocks<G> (&out)[kTiles]) {
  const SweepArgs& args = at.args;
  const States<G> states(at);
  Fragments<G> x[G::kMaps][kTiles];
  sum_keys<false>(at, states,
                  [&](auto map, int tile, const Fragments<G>& f, const Fragments<G>&) {
                    copy_fragments<G>(x[index_of(map)][tile], f);
                  });
  states.template scan<Scan::kBefore>(at.warps, [&](int i, const auto& sum) {
    if (args.made.sums) store_made(at, i, sum);
  });
  each_map<G>([&](auto map) {
    const int l = index_of(map);
    float z[G::kBlocks][4];
    states.key_sums(l).load(0, z);
    Fragment state[G::kBlocks][G::kBlocks];
#pragma unroll
    for (int i = 0; i < G::kBlocks * G::kBlocks; ++i)
      state[i / G::kBlocks][i % G::kBlocks] = states.operand(l, i);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      Fragments<G> f;
      Inputs<G>(at.rows(kQueries, tile)).features(map, f);
      RowSums<G> row_sums;
      Blocks<G> sum;
#pragma unroll
      for (int s = 0; s < G::kBlocks; ++s) {
        row_sums.add(f[s], z[s]);
#pragma unroll
        for (int b = 0; b < G::kBlocks; ++b) {
          if (s == 0) begin_product(sum[b], f[s], state[b][s]);
          if (s > 0) add_product(sum[b], f[s], state[b][s]);
        }
      }
#pragma unroll
      for (int other = 0; other <= tile; ++other) {
        Block scores;
        make_products<G>(scores, f, x[l][other]);
        Fragment inner = rounded(scores);
        if (other == tile) cut_at_diagonal</*kBefore=*/false>(inner);
        row_sums.add(inner);
        add_rows_of<G>(sum, inner, at.rows(kValues, other));
      }
      float factor[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float norm = at.row_sums() ? row_sums.of(r) + args.eps : args.fixed_norm;
        const int token = at.first_token(tile) + row_of(2 * r);
        if (at.row_sums() && lane_id() % 4 == 0 && token < args.length)
          normalisers[int64_t(l) * args.length + token] = norm;
        factor[r] = args.far_scale * reciprocal(norm);
      }
      strips::add_field<G>(out[tile], sum, factor, at.weights(), l);
    }
  });
}

/// <rows, f> of rows g and g + 8.
template <typename G>
__device__ __forceinline__ void row_products(const Fragments<G>& f, const Blocks<G>& rows,
                                             float (&sum)[2]) {
  sum[0] = sum[1] = 0.f;
#pragma unroll
  for (int i = 0; i < G::kBlocks * 4; ++i) {
    const int s = i / 4, j = i % 4;
    float low, high;
    strips::pair_of(f[s], j, low, high);
    sum[j % 2] += low * rows[s][j / 2][j % 2 * 2] + high * rows[s][j / 2][j % 2 * 2 + 1];
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) sum[r] = quad_sum(sum[r]);
}

/// dO w v^T inside a warp's tokens, as operands: of one tile's queries with an earlier tile's keys
/// or its own; and what rounding took away, where that is wanted.
struct Inner {
  Fragment all, rest;
};
template <typename G>
__device__ __forceinline__ void make_inner(Inner& inner, const Fragments<G>& weighted,
                                           const TileAt& values, bool own) {
  Block p;
  make_products<G>(p, weighted, values);
  inner.all = rounded(p);
  if constexpr (G::kCareful) inner.rest = rounded_rest(p, inner.all);
  if (!own) return;
  cut_at_diagonal</*kBefore=*/false>(inner.all);
  if constexpr (G::kCareful) cut_at_diagonal</*kBefore=*/false>(inner.rest);
}

/// One map's share of a tile's dq, from u = sum_j <dO_i w, v_j> f(k_j) and z = sum_j f(k_j) over
/// the keys that a query sees; leaves its factors and dots for the keys' side. Returns
/// <dO, far field> of rows g and g + 8. Where the gradient of weights is made here (kPlain), norms
/// are made anew, from what is multiplied here: such a gradient is a sum of many terms of either
/// sign, in which the difference shows.
template <typename G, typename Map>
__device__ __forceinline__ float finish_query(const Sequence<G>& at, Map map, int tile,
                                              const RowNumbers<G>& numbers, Blocks<G>& u, const Blocks<G>& z, Blocks<G>& dq) {
  const SweepArgs& args = at.args;
  const int l = index_of(map);
  const Inputs<G> q(at.rows(kQueries, tile));
  Fragments<G> f;
  q.features(map, f);
  float sum[2], dot[2], by_weight = 0.f;
  row_products<G>(f, u, dot);
  if constexpr (G::kCareful) row_products<G>(f, z, sum);
  const uint32_t live = at.live(tile);
  const float weight = at.weights().factor(l);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = row_of(2 * r);
    const float norm =
        G::kCareful && at.row_sums() ? sum[r] + args.eps : numbers.norms[l][r];
    const float inverse = live >> row & 1 ? reciprocal(norm) : 0.f;
    const float factor = args.far_scale * inverse, u_factor = factor * weight;
    by_weight += factor * dot[r];
    dot[r] = at.row_sums() ? dot[r] * weight * inverse : 0.f;
    const float z_factor = factor * dot[r];
#pragma unroll
    for (int i = 0; i < G::kBlocks * 4; ++i) {
      const int n = i / 2 % 2, e = 2 * r + i % 2;
      u[i / 4][n][e] = u_factor * u[i / 4][n][e] - z_factor * z[i / 4][n][e];
    }
    if (lane_id() % 4 == 0) at.factors(l, tile)[row] = factor, at.dots(l, tile)[row] = dot[r];
  }
  q.add_input_gradient(map, dq, u);
  return by_weight;
}

/// dq[tile] += the far fields' gradients; by_weight[map] += <dO, far field> of the lane's rows.
/// Barriers inside.
template <typename G>
__device__ __forceinline__ void far_query(const Sequence<G>& at,
                                          const RowNumbers<G> (&numbers)[kTiles],
                                          Blocks<G> (&dq)[kTiles],
                                          float (&by_weight)[G::kFields]) {
  const States<G> states(at);
  const Weights<G> weights = at.weights();
  Fragments<G> turned_x[G::kMaps][kTiles];
  sum_keys<true>(at, states,
                 [&](auto map, int tile, const Fragments<G>&, const Fragments<G>& turned_f) {
                   copy_fragments<G>(turned_x[index_of(map)][tile], turned_f);
                 });
  states.template scan<Scan::kBefore>(at.warps);
  Fragment seen = strips::ones<G>();
  cut_at_diagonal</*kBefore=*/false>(seen);
  // Kept, not made anew for every product.
  asm volatile("" : "+r"(seen.r[0]), "+r"(seen.r[1]), "+r"(seen.r[2]), "+r"(seen.r[3]));
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    Inner inner[kTiles];
    each_map<G>([&](auto map) {
      const int l = index_of(map);
      Fragments<G> weighted;
      load<G>(weighted, at.rows(kGradients, tile));
      weights.weigh(weighted, l);
      if (l == 0 || !G::kPlain) {
#pragma unroll
        for (int other = 0; other <= tile; ++other)
          make_inner<G>(inner[other], weighted, at.rows(kValues, other), other == tile);
      }
      Blocks<G> u, z;
      float sums_before[G::kBlocks][4];
      states.key_sums(l).load(0, sums_before);
      if (tile > 0) {
        float more[G::kBlocks][4];
        states.first_rows(l).load(0, more);
#pragma unroll
        for (int i = 0; i < G::kBlocks * 4; ++i) sums_before[i / 4][i % 4] += more[i / 4][i % 4];
      }
#pragma unroll
      for (int i = 0; i < G::kBlocks * G::kBlocks; ++i) {
        const int s = i / G::kBlocks, b = i % G::kBlocks;
        if (b == 0) begin_product(u[s], weighted[b], states.operand(l, i));
        if (b > 0) add_product(u[s], weighted[b], states.operand(l, i));
      }
#pragma unroll
      for (int i = 0; i < G::kBlocks * 8; ++i)
        z[i / 8][i / 4 % 2][i % 4] = sums_before[i / 8][i / 4 % 2 * 2 + i % 2];
#pragma unroll
      for (int other = 0; other <= tile; ++other) {
#pragma unroll
        for (int s = 0; s < G::kBlocks; ++s) {
          const Fragment& x = turned_x[l][other][s];
          add_product(u[s], inner[other].all, x);
          if constexpr (G::kCareful) add_product(u[s], inner[other].rest, x);
          if (other == tile) add_product(z[s], seen, x);
        }
      }
      by_weight[l] += finish_query(at, map, tile, numbers[tile], u, z, dq[tile]);
    });
  }
}

}  // namespace fmmformer::cuda::whole
