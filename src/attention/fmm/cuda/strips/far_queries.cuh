// SPDX-License-Identifier: Apache-2.0
// The queries' side of the far fields, backward: dq, row dots, and what weights get.
#pragma once

#include "attention/fmm/cuda/strips/far.cuh"

namespace fmmformer::cuda::strips {

/// The queries' side of one map from u = sum_j <dO_i w, v_j> f(k_j) and z(s, i) = sum_j f(k_j),
/// element i of block s, over the keys that a query sees: dq += gradient; dot becomes the row dots.
/// Returns <dO, far field> of rows g and g + 8.
template <typename G, typename Map, typename Sum>
__device__ __forceinline__ float finish_query(const FarStep<G>& step, Map map, const Inputs<G>& q,
                                              const Fragments<G>& f, const float (&norm)[2],
                                              const float (&factor)[2], Blocks<G>& u, const Sum& z,
                                              float (&dot)[2], Blocks<G>& dq) {
  const float grad_factor = step.weights.factor(index_of(map));
  dot[0] = dot[1] = 0.f;
#pragma unroll
  for (int s = 0; s < G::kBlocks; ++s) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float low, high;
      pair_of(f[s], j, low, high);
      dot[j % 2] += low * u[s][j / 2][j % 2 * 2] + high * u[s][j / 2][j % 2 * 2 + 1];
    }
  }
  float by_weight = 0.f;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    dot[r] = quad_sum(dot[r]);
    by_weight += factor[r] * dot[r];
    const bool varies = step.row_sums() && factor[r] != 0.f;
    dot[r] = varies ? __fdividef(dot[r] * grad_factor, norm[r]) : 0.f;
    const float u_factor = factor[r] * grad_factor, z_factor = factor[r] * dot[r];
#pragma unroll
    for (int i = 0; i < G::kBlocks * 4; ++i) {
      float& element = u[i / 4][i / 2 % 2][2 * r + i % 2];
      element = u_factor * element - z_factor * z(i / 4, i % 4 / 2 * 4 + 2 * r + i % 2);
    }
  }
  q.add_input_gradient(map, dq, u);
  return by_weight;
}
/// Norms of rows g and g + 8 from feature rows of queries and the sums of keys that each sees: of
/// what the backward sweep multiplies, rather than of the forward sweep's rounded products. A
/// weight's gradient is a sum of many terms of either sign, in which the difference shows.
template <typename G>
__device__ __forceinline__ void row_norms(const FarStep<G>& step, const Fragments<G>& f,
                                          const Blocks<G>& z, float (&norm)[2]) {
  norm[0] = norm[1] = 0.f;
#pragma unroll
  for (int s = 0; s < G::kBlocks; ++s) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float low, high;
      pair_of(f[s], j, low, high);
      norm[j % 2] += low * z[s][j / 2][j % 2 * 2] + high * z[s][j / 2][j % 2 * 2 + 1];
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r)
    norm[r] = step.row_sums() ? quad_sum(norm[r]) + step.args.eps : step.args.fixed_norm;
}
/// Row dots to memory, [length].
template <typename G>
__device__ __forceinline__ void store_dots(const FarStep<G>& step, const float (&dot)[2],
                                           float* dots) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int token = step.tile * kBlockDim + row_of(2 * r);
    if (lane_id() % 4 == 0 && token < step.args.length) dots[token] = dot[r];
  }
}

constexpr int kFirstNormOfQueries =
    1;  // among the numbers of the queries' sweep: after log_sum_exp

/// dq += the far fields' gradient, and the tile's keys join the states; writes row_dots, [maps +
/// 1][length]; adds to by_weight. Where the gradient of weights is made here (kPlain: one a head)
/// and operands are rounded, with more care.
template <typename G, typename T>
__device__ __forceinline__ void far_query(const FarStep<G>& step, const T& tiles,
                                          const ElemOf<G>* q_tile, const ElemOf<G>* grad_tile,
                                          const ElemOf<G>* k_tile, const ElemOf<G>* v_tile,
                                          QueryStates<G>& states, const KeySums<G>& key_sums,
                                          float* row_dots, const ByWeight<G>& by_weight,
                                          Blocks<G>& dq) {
  const bool uniform = step.weights.uniform;
  const Inputs<G> q(q_tile), k(k_tile);
  typename G::Fragment inner, inner_rest;
  const auto make_inner = [&](const Fragments<G>& weighted) {
    Fragments<G> rows;
    load<G, Side::kRight>(rows, v_tile);
    Block p;
    multiply(p, weighted, rows);
    inner = operand<G>(p);
    if constexpr (G::kCareful) {
      inner_rest = rounded_rest(p, inner);
      cut_at_diagonal</*kBefore=*/false>(inner_rest);
    }
    cut_at_diagonal</*kBefore=*/false>(inner);
  };
  each_map(step, [&](auto map) {
    const int l = index_of(map);
    auto& state = states[own_index<G>(l)];
    Fragments<G> weighted, f, turned_x;
    load<G>(weighted, grad_tile);
    step.weights.weigh(weighted, l);
    if (G::kTeam || l == 0 || !uniform) make_inner(weighted);
    k.features(map, f);
    keep_live(f, step.live);
    turn(turned_x, f);
    float sums_before[G::kBlocks][4];
    key_sums.load(l, sums_before);
    Blocks<G> u, z;
    clear(u);
    typename G::Fragment earlier = ones<G>();
    cut_at_diagonal</*kBefore=*/false>(earlier);
#pragma unroll
    for (int s = 0; s < G::kBlocks; ++s) {
#pragma unroll
      for (int b = 0; b < G::kBlocks; ++b)
        add_product(u[s], weighted[b], operand<G>(state.sums[s][b]));
      add_product(u[s], inner, turned_x[s]);
      if constexpr (G::kCareful) add_product(u[s], inner_rest, turned_x[s]);
#pragma unroll
      for (int i = 0; i < 8; ++i) z[s][i / 4][i % 4] = sums_before[s][i / 4 * 2 + i % 2];
      add_selected(z[s], earlier, turned_x[s]);
    }
    key_sums.store_last_row(l, z);
    Fragments<G> values;
    load_turned<G>(values, v_tile);
    state.add(turned_x, values);
    float norm[2], factor[2], dot[2];
    q.features(map, f);
    if constexpr (G::kCareful) {
      row_norms<G>(step, f, z, norm);
      step.factors(norm, factor);
    } else {
      step.factors(tiles.number(kFirstNormOfQueries + l, step.tile * kBlockDim), norm, factor);
    }
    by_weight.add(own_index<G>(l), finish_query<G>(
                                       step, map, q, f, norm, factor, u,
                                       [&](int s, int i) { return z[s][i / 4][i % 4]; }, dot, dq));
    store_dots(step, dot, row_dots + int64_t(l) * step.args.length);
  });
}

/// The four numbers of tokens 2t, 2t + 1, 8 + 2t, 9 + 2t, from those of rows g and g + 8.
__device__ __forceinline__ void by_column(const float (&rows)[2], float (&columns)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    columns[i] = __shfl_sync(~0u, rows[i / 2], lane_id() % 4 * 8 + i % 2 * 4);
}

/// The same, two-sided: `states` and `key_sums` receive the queries.
template <typename G, typename T>
__device__ __forceinline__ void far_query(const FarStep<G>& step, const T& tiles,
                                          const ElemOf<G>* q_tile, const ElemOf<G>* grad_tile,
                                          const FixedSums<G>& fixed, KeyStates<G>& states,
                                          const KeySums<G>& key_sums, float* row_dots,
                                          const ByWeight<G>& by_weight, Blocks<G>& dq) {
  const Inputs<G> q(q_tile);
  each_map(step, [&](auto map) {
    const int l = index_of(map);
    Fragments<G> weighted, f, turned_f;
    load<G>(weighted, grad_tile);
    step.weights.weigh(weighted, l);
    Blocks<G> u;
    clear(u);
#pragma unroll
    for (int s = 0; s < G::kBlocks; ++s) {
#pragma unroll
      for (int b = 0; b < G::kBlocks; ++b)
        add_product(u[s], weighted[b], fixed.turned_block(l, b, s));
    }
    float norm[2], factor[2], dot[2], dots[4];
    step.factors(tiles.number(kFirstNormOfQueries + l, step.tile * kBlockDim), norm, factor);
    q.features(map, f);
    float z[G::kBlocks][4];
    fixed.key_sums.load(l, z);
    by_weight.add(own_index<G>(l),
                  finish_query<G>(
                      step, map, q, f, norm, factor, u,
                      [&](int s, int i) { return z[s][i / 4 * 2 + i % 2]; }, dot, dq));
    store_dots(step, dot, row_dots + int64_t(l) * step.args.length);
    scale(f, factor);
    turn(turned_f, f);
    by_column(dot, dots);
    Fragments<G> turned_grad;
    load_turned<G>(turned_grad, grad_tile);
    states[own_index<G>(l)].add(turned_f, turned_grad);
    float y[G::kBlocks][4];
    key_sums.load(l, y);
    add_rows<G>(y, turned_f, dots);
    key_sums.store(l, y);
  });
}

}  // namespace fmmformer::cuda::strips
