// SPDX-License-Identifier: Apache-2.0
// One far field of a warp's 32 tokens, the keys' side of backward; T is the state of the queries
// after the warp's tokens.
#pragma once

#include "attention/fmm/cuda/whole/far.cuh"
#include "attention/fmm/cuda/whole/near.cuh"

namespace fmmformer::cuda::whole {

/// For the gradient of a weight that differs by channel, of one field: sums over tokens of
/// v_j * (gradient of v before its weight). A lane has those of its rows and columns
/// 16 s + 8 n + 2t + p, [4 s + 2 n + p], until they are shared out.
template <typename G>
struct WeightSums {
  static constexpr int kCount = G::kBlocks * 4;
  float sums[kCount] = {};

  static __device__ __forceinline__ bool wanted(const SweepArgs& args) {
    return !G::kPlain && args.weight_sums && !args.uniform_weights;
  }
  __device__ __forceinline__ void add(const Blocks<G>& rows, const TileAt& v_tile) {
    Fragments<G> v;
    load<G>(v, v_tile);
#pragma unroll
    for (int i = 0; i < G::kBlocks * 4; ++i) {
      const int s = i / 4, j = i % 4;
      float low, high;
      strips::pair_of(v[s], j, low, high);
      const float* row = rows[s][j / 2] + j % 2 * 2;
      sums[s * 4 + j / 2 * 2] += low * row[0], sums[s * 4 + j / 2 * 2 + 1] += high * row[1];
    }
  }
  /// Over all rows, of the channel that is the lane's. Lanes that differ in one bit of g share
  /// their numbers out, half for each, as long as they have two.
  __device__ __forceinline__ float of_channel() {
    int count = kCount;
#pragma unroll
    for (int bit = 16; bit >= 4; bit /= 2) {
      const bool upper = lane_id() & bit;
      count /= 2;
      if (count == 0) {
        sums[0] += __shfl_xor_sync(~0u, sums[0], bit);
        continue;
      }
#pragma unroll
      for (int i = 0; i < count; ++i) {
        const float given = upper ? sums[i] : sums[count + i],
                    kept = upper ? sums[count + i] : sums[i];
        sums[i] = kept + __shfl_xor_sync(~0u, given, bit);
      }
    }
    return sums[0];
  }
  static __device__ __forceinline__ int channel() {
    const int i = lane_id() / 4 * kCount / 8;
    return i / 4 * kBlockDim + i % 4 / 2 * 8 + lane_id() % 4 * 2 + i % 2;
  }
};

/// dv += weight * value_sum, of one field; its share of the weight's gradient joins `total`.
template <typename G>
__device__ __forceinline__ void add_values(const Sequence<G>& at, int field,
                                           const Blocks<G>& value_sum, Blocks<G>& dv,
                                           float& total) {
  const float ones[2] = {1.f, 1.f};
  if (WeightSums<G>::wanted(at.args)) {
    WeightSums<G> sums;
    sums.add(value_sum, at.rows(kValues));
    total += sums.of_channel();
  }
  strips::add_field<G>(dv, value_sum, ones, at.weights(), field);
}

/// The dots of the tile's queries 2t, 2t + 1, 8 + 2t, 9 + 2t.
template <typename G>
__device__ __forceinline__ void load_dots(const Sequence<G>& at, int map, float (&dots)[4]) {
  const float* from = at.dots(map) + lane_id() % 4 * 2;
  const float2 low = *reinterpret_cast<const float2*>(from),
               high = *reinterpret_cast<const float2*>(from + 8);
  dots[0] = low.x, dots[1] = low.y, dots[2] = high.x, dots[3] = high.y;
}

/// Sums over the tile's queries, of the maps of a group: `f` become their feature rows, times
/// far_scale / norm.
template <typename G, typename Group>
__device__ __forceinline__ void sum_queries(const Sequence<G>& at, const States<G>& states,
                                            Group group, Fragments<G> (&f)[Group::count]) {
  each_map_of(group, [&](auto map) {
    const int l = index_of(map), index = l - Group::first;
    float factor[2], dots[4];
#pragma unroll
    for (int r = 0; r < 2; ++r) factor[r] = at.factors(l)[row_of(2 * r)];
    Inputs<G>(at.rows(kQueries)).features(map, f[index]);
    strips::scale(f[index], factor);
    OwnSums<G> sums;
    Fragments<G> turned_f, turned_grad;
    strips::turn(turned_f, f[index]);
    load_turned<G>(turned_grad, at.rows(kGradients));
    sums.make(turned_grad, turned_f);
    load_dots(at, l, dots);
    sums.make_rows(turned_f, Bf16::make_b(dots));
    states.store(index, sums);
  });
}

/// value_sum = f(k) T + the products with the tile's own queries `f`.
template <typename G, typename Map>
__device__ __forceinline__ void make_values(const Sequence<G>& at, const States<G>& states,
                                            int index, Map map, const Fragments<G>& f,
                                            Blocks<G>& sum) {
  Fragments<G> x;
  Inputs<G>(at.rows(kKeys)).features(map, x);
#pragma unroll
  for (int i = 0; i < G::kBlocks * G::kBlocks; ++i) {
    const int b = i / G::kBlocks, s = i % G::kBlocks;
    if (s == 0) begin_product(sum[b], x[s], states.operand(index, i));
    if (s > 0) add_product(sum[b], x[s], states.operand(index, i));
  }
  Block scores;
  make_products<G>(scores, x, f);
  Fragment inner = rounded(scores);
  cut_at_diagonal</*kBefore=*/true>(inner);
  add_rows_of<G>(sum, inner, at.rows(kGradients));
}

/// The gradient of f(k): v w T^T - y + the products with the tile's own queries `f`.
template <typename G>
__device__ __forceinline__ void make_gradient(const Sequence<G>& at, const States<G>& states,
                                              int index, int map, const Fragments<G>& f,
                                              Blocks<G>& gradient) {
  const Weights<G> weights = at.weights();
  const float weight = weights.factor(map);
  Fragments<G> weighted;
  load<G>(weighted, at.rows(kValues));
  weights.weigh(weighted, map);
#pragma unroll
  for (int i = 0; i < G::kBlocks * G::kBlocks; ++i) {
    const int b = i / G::kBlocks, s = i % G::kBlocks;
    const Fragment sums = turned(states.operand(index, i));
    if (b == 0) begin_product(gradient[s], weighted[b], sums);
    if (b > 0) add_product(gradient[s], weighted[b], sums);
  }
  float y[G::kBlocks][4], dots[4];
  states.key_sums(index).load(0, y);
  load_dots(at, map, dots);
#pragma unroll
  for (int i = 0; i < G::kBlocks * 8; ++i) {
    float& element = gradient[i / 8][i / 4 % 2][i % 4];
    element = weight * element - y[i / 8][i / 4 % 2 * 2 + i % 2];
  }
  Block p;
  make_products<G>(p, weighted, at.rows(kGradients));
#pragma unroll
  for (int i = 0; i < 8; ++i)
    p[i / 4][i % 4] = weight * p[i / 4][i % 4] - dots[i / 4 * 2 + i % 2];
  Fragment inner = rounded(p);
  cut_at_diagonal</*kBefore=*/true>(inner);
#pragma unroll
  for (int s = 0; s < G::kBlocks; ++s) add_product(gradient[s], inner, turned(f[s]));
}

/// dk and dv += the far fields' gradients; weight_sums[map] += the lane's channel's. `start`: the
/// states that the round begins with, or none; `total`: where those after it go. Barriers inside.
template <typename G, typename Group>
__device__ __forceinline__ void far_key(const Sequence<G>& at, Group group, const float* start,
                                        float* total, Blocks<G>& dk, Blocks<G>& dv,
                                        float (&weight_sums)[G::kFields]) {
  const States<G> states(at);
  Fragments<G> f[Group::count];
  sum_queries<G>(at, states, group, f);
  constexpr int kFirst = Group::first * G::kStateSize;
  states.template scan<Scan::kAfter, Group::count>(at.warps, start ? start + kFirst : nullptr,
                                                   total ? total + kFirst : nullptr);
  each_map_of(group, [&](auto map) {
    const int l = index_of(map), index = l - Group::first;
    Blocks<G> result;
    make_values(at, states, index, map, f[index], result);
    add_values(at, l, result, dv, weight_sums[l]);
    make_gradient(at, states, index, l, f[index], result);
    Inputs<G>(at.rows(kKeys)).add_input_gradient(map, dk, result);
  });
}

}  // namespace fmmformer::cuda::whole
