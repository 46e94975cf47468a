// SPDX-License-Identifier: Apache-2.0
// Far fields of a warp's 32 tokens, forward and the queries' side of backward. The formulas are
// those of docs/math.md; S is the state before the warp's tokens.
#pragma once

#include "attention/fmm/cuda/whole/states.cuh"

namespace fmmformer::cuda::whole {

/// Sums over the tile's keys, of the maps of a group, with the features' channels as rows or v's;
/// use(map, features, turned) sees their rows, zeros for dead ones.
template <bool kKeysAreRows, typename G, typename Group, typename Use>
__device__ __forceinline__ void sum_keys(const Sequence<G>& at, const States<G>& states,
                                         Group group, const Use& use) {
  each_map_of(group, [&](auto map) {
    OwnSums<G> sums;
    Fragments<G> x, turned_x, values;
    Inputs<G>(at.rows(kKeys)).features(map, x);
    strips::keep_live(x, at.live());
    strips::turn(turned_x, x);
    load_turned<G, kKeysAreRows ? Side::kRight : Side::kAny>(values, at.rows(kValues));
    if (kKeysAreRows) sums.make(turned_x, values);
    if (!kKeysAreRows) sums.make(values, turned_x);
    sums.make_rows(turned_x, {{kOnes, kOnes}});
    states.store(index_of(map) - Group::first, sums);
    use(map, x, turned_x);
  });
}
template <typename G>
__device__ __forceinline__ void copy_fragments(Fragments<G>& to, const Fragments<G>& from) {
#pragma unroll
  for (int s = 0; s < G::kBlocks; ++s) to[s] = from[s];
}

/// out += weight * far fields; writes normalisers, [maps][length]. `carry`: the states that the
/// round begins with, if any, and where those after it go. Barriers inside.
template <typename G, typename Group>
__device__ __forceinline__ void far_forward(const Sequence<G>& at, Group group, float* carry,
                                            float* normalisers, Blocks<G>& out) {
  const SweepArgs& args = at.args;
  const States<G> states(at);
  Fragments<G> x[Group::count];
  sum_keys<false>(at, states, group,
                  [&](auto map, const Fragments<G>& f, const Fragments<G>&) {
                    copy_fragments<G>(x[index_of(map) - Group::first], f);
                  });
  carry += Group::first * G::kStateSize;
  states.template scan<Scan::kBefore, Group::count>(at.warps, at.round > 0 ? carry : nullptr,
                                                    carry);
  each_map_of(group, [&](auto map) {
    const int l = index_of(map), index = l - Group::first;
    Fragments<G> f;
    Inputs<G>(at.rows(kQueries)).features(map, f);
    float z[G::kBlocks][4];
    states.key_sums(index).load(0, z);
    RowSums<G> row_sums;
    Blocks<G> sum;
#pragma unroll
    for (int i = 0; i < G::kBlocks * G::kBlocks; ++i) {
      const int b = i / G::kBlocks, s = i % G::kBlocks;
      if (s == 0) begin_product(sum[b], f[s], states.operand(index, i));
      if (s > 0) add_product(sum[b], f[s], states.operand(index, i));
    }
    Block scores;
    make_products<G>(scores, f, x[index]);
    Fragment inner = rounded(scores);
    cut_at_diagonal</*kBefore=*/false>(inner);
#pragma unroll
    for (int s = 0; s < G::kBlocks; ++s) row_sums.add(f[s], z[s]);
    row_sums.add(inner);
    add_rows_of<G>(sum, inner, at.rows(kValues));
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float norm = at.row_sums() ? row_sums.of(r) + args.eps : args.fixed_norm;
      const int token = at.first_token() + row_of(2 * r);
      if (at.row_sums() && lane_id() % 4 == 0 && token < args.length)
        normalisers[int64_t(l) * args.length + token] = norm;
      factor[r] = args.far_scale * reciprocal(norm);
    }
    strips::add_field<G>(out, sum, factor, at.weights(), l);
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

/// One map's share of the tile's dq, from u = sum_j <dO_i w, v_j> f(k_j) and z = sum_j f(k_j) over
/// the keys that a query sees; leaves its factors and dots for the keys' side. Returns
/// <dO, far field> of rows g and g + 8. Where the gradient of weights is made here (kPlain), norms
/// are made anew, from what is multiplied here: such a gradient is a sum of many terms of either
/// sign, in which the difference shows.
template <typename G, typename Map>
__device__ __forceinline__ float finish_query(const Sequence<G>& at, Map map,
                                              const RowNumbers<G>& numbers, Blocks<G>& u,
                                              const Blocks<G>& z, Blocks<G>& dq) {
  const SweepArgs& args = at.args;
  const int l = index_of(map);
  const Inputs<G> q(at.rows(kQueries));
  Fragments<G> f;
  q.features(map, f);
  float sum[2], dot[2], by_weight = 0.f;
  row_products<G>(f, u, dot);
  if constexpr (G::kCareful) row_products<G>(f, z, sum);
  const uint32_t live = at.live();
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
    if (lane_id() % 4 == 0) at.factors(l)[row] = factor, at.dots(l)[row] = dot[r];
  }
  q.add_input_gradient(map, dq, u);
  return by_weight;
}

/// dq += the far fields' gradients; weight_sums[map] += <dO, far field> of the lane's rows, where
/// weights are equal for all channels. `start`: the states that the round begins with, or none.
/// Barriers inside.
template <typename G, typename Group>
__device__ __forceinline__ void far_query(const Sequence<G>& at, Group group, const float* start,
                                          const RowNumbers<G>& numbers, Blocks<G>& dq,
                                          float (&weight_sums)[G::kFields]) {
  const States<G> states(at);
  const Weights<G> weights = at.weights();
  Fragments<G> turned_x[Group::count];
  sum_keys<true>(at, states, group,
                 [&](auto map, const Fragments<G>&, const Fragments<G>& turned_f) {
                   copy_fragments<G>(turned_x[index_of(map) - Group::first], turned_f);
                 });
  states.template scan<Scan::kBefore, Group::count>(
      at.warps, start ? start + Group::first * G::kStateSize : nullptr, nullptr);
  Fragment inner, rest, seen = strips::ones<G>();
  cut_at_diagonal</*kBefore=*/false>(seen);
  each_map_of(group, [&](auto map) {
    const int l = index_of(map), index = l - Group::first;
    Fragments<G> weighted;
    load<G>(weighted, at.rows(kGradients));
    weights.weigh(weighted, l);
    if (index == 0 || !G::kPlain) {  // the same for all maps of a weight for all channels
      Block p;
      make_products<G>(p, weighted, at.rows(kValues));
      inner = rounded(p);
      if constexpr (G::kCareful) {
        rest = rounded_rest(p, inner);
        cut_at_diagonal</*kBefore=*/false>(rest);
      }
      cut_at_diagonal</*kBefore=*/false>(inner);
    }
    Blocks<G> u, z;
    float sums_before[G::kBlocks][4];
    states.key_sums(index).load(0, sums_before);
#pragma unroll
    for (int i = 0; i < G::kBlocks * G::kBlocks; ++i) {
      const int s = i / G::kBlocks, b = i % G::kBlocks;
      if (b == 0) begin_product(u[s], weighted[b], states.operand(index, i));
      if (b > 0) add_product(u[s], weighted[b], states.operand(index, i));
    }
#pragma unroll
    for (int s = 0; s < G::kBlocks; ++s) {
      const Fragment& x = turned_x[index][s];
      add_product(u[s], inner, x);
      if constexpr (G::kCareful) add_product(u[s], rest, x);
#pragma unroll
      for (int i = 0; i < 8; ++i) z[s][i / 4][i % 4] = sums_before[s][i / 4 * 2 + i % 2];
      add_product(z[s], seen, x);
    }
    const float by_weight = finish_query(at, map, numbers, u, z, dq);
    if (weights.uniform) weight_sums[l] += by_weight;
  });
}

}  // namespace fmmformer::cuda::whole
