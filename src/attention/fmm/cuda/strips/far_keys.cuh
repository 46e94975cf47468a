// SPDX-License-Identifier: Apache-2.0
// The keys' side of the far fields, backward: dk and dv from sums over queries.
#pragma once

#include "attention/fmm/cuda/strips/far.cuh"

namespace fmmformer::cuda::strips {

/// Query features times far_scale / norm, and the queries' dots: what sums over queries are made
/// of. `numbers`: the first of the maps' norms in the ring; their dots follow.
template <typename G, typename T, typename Map, Side kSide>
__device__ __forceinline__ void scaled_queries(const FarStep<G>& step, const T& tiles, Map map,
                                               const Inputs<G, kSide>& q, int numbers,
                                               Fragments<G>& f, float (&dots)[4]) {
  const int first = step.tile * kBlockDim, l = index_of(map);
  float norm[2], factor[2];
  step.factors(tiles.number(numbers + l, first), norm, factor);
  q.features(map, f);
  scale(f, factor);
  const float* from = tiles.number(numbers + G::kMaps + l, first) + lane_id() % 4 * 2;
  dots[0] = from[0], dots[1] = from[1], dots[2] = from[8], dots[3] = from[9];
}
constexpr int kFirstNormOfKeys = 2;  // among the numbers of the keys' sweep: after log_sum_exp, dot

/// Adds sixteen queries to the states.
template <typename G, typename T>
__device__ __forceinline__ void add_queries(const FarStep<G>& step, const T& tiles,
                                            KeyStates<G>& states) {
  if ((step.live & 0xffffu) == 0) return;
  const Inputs<G> q(tiles.band_tile(0, step.tile));
  Fragments<G> turned_grad;
  load_turned<G>(turned_grad, tiles.band_tile(1, step.tile));
  each_map(step, [&](auto map) {
    const int l = index_of(map);
    Fragments<G> f, turned_f;
    float dots[4];
    scaled_queries<G>(step, tiles, map, q, kFirstNormOfKeys, f, dots);
    turn(turned_f, f);
    states[own_index<G>(l)].add(turned_f, turned_grad);
    add_rows<G>(states[own_index<G>(l)].key_sums, turned_f, dots);
  });
}

/// One map's share of the keys' side: dk_part = v T^T and value_sum = f(k) T come in; out go
/// gradients of k, by way of the slope, and of v.
template <typename G>
struct KeyResults {
  Blocks<G> dk, dv;
  WeightSums<G> weight_sums;

  template <typename Map>
  __device__ __forceinline__ void add(const FarStep<G>& step, Map map, const Inputs<G>& k,
                                      const ElemOf<G>* v_tile, const Blocks<G>& dk_part,
                                      const Blocks<G>& value_sum) {
    add_values(step, index_of(map), v_tile, value_sum);
    k.add_input_gradient(map, dk, dk_part);
  }
  __device__ __forceinline__ void add_values(const FarStep<G>& step, int field,
                                             const ElemOf<G>* v_tile, const Blocks<G>& value_sum) {
    const float ones[2] = {1.f, 1.f};
    weight_sums.add(field, value_sum, v_tile);
    add_field<G>(dv, value_sum, ones, step.weights, field);
  }
};

/// Adds the far fields' gradients, and the tile's queries join the states.
template <typename G, typename T>
__device__ __forceinline__ void far_key(const FarStep<G>& step, const T& tiles,
                                        const ElemOf<G>* k_tile, const ElemOf<G>* v_tile,
                                        KeyStates<G>& states, const KeySums<G>& key_sums,
                                        KeyResults<G>& results) {
  const bool uniform = step.weights.uniform;
  const ElemOf<G>* grad_tile = tiles.band_tile(1, step.tile);
  const Inputs<G, Side::kRight> q(tiles.band_tile(0, step.tile));
  const Inputs<G> k(k_tile);
  Block p;
  each_map(step, [&](auto map) {
    const int l = index_of(map);
    auto& state = states[own_index<G>(l)];
    Fragments<G> f, turned_f, turned_grad, weighted;
    float dots[4], y[G::kBlocks][4];
    scaled_queries<G>(step, tiles, map, q, kFirstNormOfKeys, f, dots);
    turn(turned_f, f);
    load_turned<G>(turned_grad, grad_tile);
    load<G>(weighted, v_tile);
    step.weights.weigh(weighted, l);
    Blocks<G> dk, value_sum;
    clear(dk), clear(value_sum);
    {
      Fragments<G> x;
      k.features(map, x);
      Block a;
      multiply(a, x, f);
      typename G::Fragment inner = operand<G>(a);
      cut_at_diagonal</*kBefore=*/true>(inner);
#pragma unroll
      for (int b = 0; b < G::kBlocks; ++b) {
#pragma unroll
        for (int s = 0; s < G::kBlocks; ++s) {
          const typename G::Fragment sums = operand<G>(state.sums[b][s]);
          add_product(value_sum[b], x[s], sums);
          add_product(dk[s], weighted[b], turned(sums));
        }
        add_product(value_sum[b], inner, turned_grad[b]);
      }
    }
    state.add(turned_f, turned_grad);
    if (G::kTeam || l == 0 || !uniform) {
      Fragments<G> grad;
      load<G, Side::kRight>(grad, grad_tile);
      multiply(p, weighted, grad);
    }
    const float factor = step.weights.factor(l);
    Block inner_p;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      inner_p[i / 4][i % 4] = factor * p[i / 4][i % 4] - dots[i / 4 * 2 + i % 2];
    typename G::Fragment inner = operand<G>(inner_p);
    cut_at_diagonal</*kBefore=*/true>(inner);
    key_sums.load(l, y);
#pragma unroll
    for (int s = 0; s < G::kBlocks; ++s) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float& element = dk[s][i / 4][i % 4];
        element = factor * element - y[s][i / 4 * 2 + i % 2];
      }
      add_product(dk[s], inner, turned_f[s]);
    }
    add_rows<G>(y, turned_f, dots);
    key_sums.store(l, y);
    results.add(step, map, k, v_tile, dk, value_sum);
  });
}
/// The same, two-sided.
template <typename G>
__device__ __forceinline__ void far_key(const FarStep<G>& step, const ElemOf<G>* k_tile,
                                        const ElemOf<G>* v_tile, const FixedSums<G>& fixed,
                                        KeyResults<G>& results) {
  const Inputs<G> k(k_tile);
  each_map_alone(step, [&](auto map) {
    const int l = index_of(map);
    Fragments<G> x, weighted;
    k.features(map, x);
    load<G>(weighted, v_tile);
    step.weights.weigh(weighted, l);
    Blocks<G> dk, value_sum;
    clear(dk), clear(value_sum);
#pragma unroll
    for (int i = 0; i < G::kBlocks * G::kBlocks; ++i) {
      const int b = i / G::kBlocks, s = i % G::kBlocks;
      add_product(value_sum[b], x[s], fixed.block(l, b, s));
      add_product(dk[s], weighted[b], fixed.turned_block(l, b, s));
    }
    const float factor = step.weights.factor(l);
    float y[G::kBlocks][4];
    fixed.key_sums.load(l, y);
#pragma unroll
    for (int i = 0; i < G::kBlocks * 8; ++i) {
      float& element = dk[i / 8][i / 4 % 2][i % 4];
      element = factor * element - y[i / 8][i / 4 % 2 * 2 + i % 2];
    }
    results.add(step, map, k, v_tile, dk, value_sum);
  });
}

}  // namespace fmmformer::cuda::strips
