// SPDX-License-Identifier: Apache-2.0
// Far fields of a warp's 32 tokens, the queries' side of backward: dq, row dots, and what weights
// get that are equal for all channels.
#pragma once

#include "attention/fmm/cuda/whole/far.cuh"

namespace fmmformer::cuda::whole {

/// What maps make of a tile's keys, turned; zeros for dead ones. Rows that are loaded turned need
/// no more turning; unless they are divided by their sums.
template <typename G, bool kUnit = G::kUnit>
struct TurnedKeys {
  uint32_t live;
  Fragment k;
  uint32_t decay[4];

  __device__ __forceinline__ TurnedKeys(const Sequence<G>& at, int tile)
      : live(at.live(tile)), k(load_turned_block(at.rows(kKeys, tile))) {
#pragma unroll
    for (int i = 0; i < 4; ++i) decay[i] = decay_of(k.r[i]);
  }
  template <int kMap>
  __device__ __forceinline__ void features(MapIndex<kMap>, Fragments<G>& turned) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) turned[0].r[i] = feature_pair<kMap>(k.r[i], decay[i]);
    keep_columns(turned[0], live);
  }
};
template <typename G>
struct TurnedKeys<G, true> {
  uint32_t live;
  Inputs<G> k;

  __device__ __forceinline__ TurnedKeys(const Sequence<G>& at, int tile)
      : live(at.live(tile)), k(at.rows(kKeys, tile)) {}
  template <int kMap>
  __device__ __forceinline__ void features(MapIndex<kMap> map, Fragments<G>& turned) const {
    Fragments<G> x;
    k.features(map, x);
    strips::keep_live(x, live);
    strips::turn(turned, x);
  }
};

/// Sums over the warp's keys, tile by tile, so that all maps of one share an exponential;
/// `turned_x` become their feature rows, turned.
template <typename G>
__device__ __forceinline__ void sum_keys(const Sequence<G>& at, const States<G>& states,
                                         Fragment (&turned_x)[G::kMaps][kTiles]) {
  OwnSums<G> sums[G::kMaps], first_rows[G::kMaps];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const TurnedKeys<G> k(at, tile);
    Fragments<G> values;
    load_turned<G, Side::kRight>(values, at.rows(kValues, tile));
    each_map<G>([&](auto map) {
      const int l = index_of(map);
      Fragments<G> turned;
      k.features(map, turned);
      sums[l].add(tile == 0, turned, values);
      sums[l].add_rows(tile == 0, turned, {{kOnes, kOnes}});
      if (tile == 0) first_rows[l] = sums[l];
      turned_x[l][tile] = turned[0];
      keep(turned_x[l][tile]);
    });
  }
#pragma unroll
  for (int l = 0; l < G::kMaps; ++l) {
    states.store(l, sums[l]);
    first_rows[l].store_rows(states.first_rows(l).sums);
  }
}

/// <rows, f> of rows g and g + 8.
template <typename G>
__device__ __forceinline__ void row_products(const Fragments<G>& f, const Blocks<G>& rows,
                                             float (&sum)[2]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    float low, high;
    strips::pair_of(f[0], j, low, high);
    const float* row = rows[0][j / 2] + j % 2 * 2;
    sum[j % 2] = j < 2 ? low * row[0] : fmaf(low, row[0], sum[j % 2]);
    sum[j % 2] = fmaf(high, row[1], sum[j % 2]);
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
  if (own) cut_at_diagonal</*kBefore=*/false>(inner.all);
  if (own && G::kCareful) cut_at_diagonal</*kBefore=*/false>(inner.rest);
  keep(inner.all);
  if constexpr (G::kCareful) keep(inner.rest);
}

/// sum += gradient with respect to a map's rows f, times the map's slope. Rows of elu and elu_flip
/// tell it themselves: min(f, 1).
template <typename G, int kMap>
__device__ __forceinline__ void add_input_gradient(MapIndex<kMap> map, const Inputs<G>& inputs,
                                                   const Fragments<G>& f, Blocks<G>& sum,
                                                   const Blocks<G>& gradient) {
  if constexpr (G::kUnit || kMap == 2) {
    inputs.add_input_gradient(map, sum, gradient);
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float low, high;
      Bf16::unpack(as_bits(__hmin2_nan(as_pair(f[0].r[j]), both(1.f))), low, high);
      float* to = sum[0][j / 2] + j % 2 * 2;
      const float* df = gradient[0][j / 2] + j % 2 * 2;
      to[0] += df[0] * (kMap == 1 ? -low : low), to[1] += df[1] * (kMap == 1 ? -high : high);
    }
  }
}

/// What the queries' side of a map leaves of rows g and g + 8 for the keys' side.
struct RowResults {
  float factors[2], dots[2];
};
/// One map's share of a tile's dq, from u = sum_j <dO_i w, v_j> f(k_j) and z = sum_j f(k_j) over
/// the keys that a query sees; `results` are for the keys' side. Returns
/// <dO, far field> of rows g and g + 8. Where the gradient of weights is made here (kPlain), norms
/// are made anew, from what is multiplied here: such a gradient is a sum of many terms of either
/// sign, in which the difference shows.
template <typename G, typename Map>
__device__ __forceinline__ float finish_query(const Sequence<G>& at, Map map, int tile,
                                              const Inputs<G>& q, Blocks<G>& u, const Blocks<G>& z,
                                              Blocks<G>& dq, RowResults& results) {
  const SweepArgs& args = at.args;
  const int l = index_of(map);
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
    const float norm = !at.row_sums() ? args.fixed_norm
                       : G::kCareful  ? sum[r] + args.eps
                                      : at.norms(l, tile)[row];
    const float inverse = live >> row & 1 ? reciprocal(norm) : 0.f;
    const float factor = args.far_scale * inverse, u_factor = factor * weight;
    by_weight += factor * dot[r];
    dot[r] = at.row_sums() ? dot[r] * weight * inverse : 0.f;
    const float z_factor = factor * dot[r];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& element = u[0][i / 2][2 * r + i % 2];
      element = u_factor * element - z_factor * z[0][i / 2][2 * r + i % 2];
    }
    results.factors[r] = factor, results.dots[r] = dot[r];
  }
  add_input_gradient<G>(map, q, f, dq, u);
  return by_weight;
}

/// dq[tile] += the far fields' gradients; by_weight[map] += <dO, far field> of the lane's rows.
/// Barriers inside.
template <typename G>
__device__ __forceinline__ void far_query(const Sequence<G>& at, Blocks<G> (&dq)[kTiles],
                                          float (&by_weight)[G::kFields]) {
  const States<G> states(at);
  const Weights<G> weights = at.weights();
  Fragment turned_x[G::kMaps][kTiles];
  sum_keys(at, states, turned_x);
  wait_for_copies();  // of rows that nobody has needed so far
  __syncthreads();
  states.template scan<Scan::kBefore>(at.warps);
  // Of up to two maps both tiles share what is loaded and rounded; more would be spilled.
  constexpr bool kHeld = G::kMaps < 3;
  Fragment before[G::kMaps];
#pragma unroll
  for (int l = 0; l < G::kMaps && kHeld; ++l) {
    before[l] = states.operand(l);
    keep(before[l]);
  }
  Fragment seen = strips::ones<G>();
  cut_at_diagonal</*kBefore=*/false>(seen);
  keep(seen);
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    Inner inner[kTiles];
    RowResults results[G::kMaps];
    const Inputs<G> q(at.rows(kQueries, tile));
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
      float sums_before[1][4];
      states.key_sums(l).load(0, sums_before);
      if (tile > 0) {
        float more[1][4];
        states.first_rows(l).load(0, more);
#pragma unroll
        for (int i = 0; i < 4; ++i) sums_before[0][i] += more[0][i];
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) z[0][i / 4][i % 4] = sums_before[0][i / 4 * 2 + i % 2];
      add_product(z[0], seen, turned_x[l][tile]);
      begin_product(u[0], weighted[0], kHeld ? before[l] : states.operand(l));
#pragma unroll
      for (int other = 0; other <= tile; ++other) {
        add_product(u[0], inner[other].all, turned_x[l][other]);
        if constexpr (G::kCareful) add_product(u[0], inner[other].rest, turned_x[l][other]);
      }
      by_weight[l] += finish_query(at, map, tile, q, u, z, dq[tile], results[l]);
    });
    // Not map by map: loads of the next map would have to wait for these stores.
#pragma unroll
    for (int i = 0; i < 2 * G::kMaps && lane_id() % 4 == 0; ++i) {
      const int l = i / 2, r = i % 2, row = row_of(2 * r);
      at.factors(l, tile)[row] = results[l].factors[r], at.dots(l, tile)[row] = results[l].dots[r];
    }
  }
}

}  // namespace fmmformer::cuda::whole
