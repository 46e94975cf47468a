// SPDX-License-Identifier: Apache-2.0
// Far fields of a warp's 32 tokens, the keys' side of backward; T is the state of the queries after
// the warp's tokens.
#pragma once

#include "attention/fmm/cuda/whole/far_queries.cuh"
#include "attention/fmm/cuda/whole/near.cuh"

namespace fmmformer::cuda::whole {

/// Sums for the gradient of a weight that differs by channel, of one field: over the warp's tokens
/// of v_j * (gradient of v before its weight). A lane has those of its rows, of columns 2t, 2t + 1,
/// 8 + 2t, 9 + 2t.
template <typename G>
struct WeightSums {
  float sums[4] = {};

  static __device__ __forceinline__ bool wanted(const SweepArgs& args) {
    return !G::kPlain && args.weight_sums && !args.uniform_weights;
  }
  __device__ __forceinline__ void add(const Blocks<G>& rows, const TileAt& v_tile) {
    Fragments<G> v;
    load<G>(v, v_tile);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float low, high;
      strips::pair_of(v[0], j, low, high);
      const float* row = rows[0][j / 2] + j % 2 * 2;
      sums[j / 2 * 2] += low * row[0], sums[j / 2 * 2 + 1] += high * row[1];
    }
  }
  /// Over all rows, added to those in the warp's memory. Lanes that differ in a bit of g share
  /// their numbers out, half for each, until each has one.
  __device__ __forceinline__ void store(const Sequence<G>& at, int field) {
    const bool upper = lane_id() & 16, odd = lane_id() & 8;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      sums[i] =
          (upper ? sums[2 + i] : sums[i]) + __shfl_xor_sync(~0u, upper ? sums[i] : sums[2 + i], 16);
    float sum = (odd ? sums[1] : sums[0]) + __shfl_xor_sync(~0u, odd ? sums[0] : sums[1], 8);
    sum += __shfl_xor_sync(~0u, sum, 4);
    const int channel = (upper ? 8 : 0) + lane_id() % 4 * 2 + (odd ? 1 : 0);
    if (!(lane_id() & 4)) at.template own<float>(G::kWeightSums)[field * kDim + channel] += sum;
  }
};

/// dv += weight * value_sum, of one field.
template <typename G>
__device__ __forceinline__ void add_values(const Sequence<G>& at, int field, int tile,
                                           const Blocks<G>& value_sum, Blocks<G>& dv,
                                           WeightSums<G>& weight_sums) {
  const float ones[2] = {1.f, 1.f};
  if (WeightSums<G>::wanted(at.args)) weight_sums.add(value_sum, at.rows(kValues, tile));
  strips::add_field<G>(dv, value_sum, ones, at.weights(), field);
}

/// The dots of a tile's queries 2t, 2t + 1, 8 + 2t, 9 + 2t.
template <typename G>
__device__ __forceinline__ void load_dots(const Sequence<G>& at, int map, int tile,
                                          float (&dots)[4]) {
  const float* from = at.dots(map, tile) + lane_id() % 4 * 2;
  const float2 low = *reinterpret_cast<const float2*>(from),
               high = *reinterpret_cast<const float2*>(from + 8);
  dots[0] = low.x, dots[1] = low.y, dots[2] = high.x, dots[3] = high.y;
}

/// Sums over the warp's queries; `f` become their feature rows, times far_scale / norm.
template <typename G>
__device__ __forceinline__ void sum_queries(const Sequence<G>& at, const States<G>& states,
                                            Fragments<G> (&f)[G::kMaps][kTiles]) {
  OwnSums<G> sums[G::kMaps];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const Inputs<G> q(at.rows(kQueries, tile));
    Fragments<G> turned_grad;
    load_turned<G>(turned_grad, at.rows(kGradients, tile));
    each_map<G>([&](auto map) {
      const int l = index_of(map);
      float factor[2], dots[4];
#pragma unroll
      for (int r = 0; r < 2; ++r) factor[r] = at.factors(l, tile)[row_of(2 * r)];
      q.features(map, f[l][tile]);
      strips::scale(f[l][tile], factor);
      Fragments<G> turned_f;
      strips::turn(turned_f, f[l][tile]);
      sums[l].add(tile == 0, turned_grad, turned_f);
      load_dots(at, l, tile, dots);
      sums[l].add_rows(tile == 0, turned_f, Bf16::make_b(dots));
    });
  }
#pragma unroll
  for (int l = 0; l < G::kMaps; ++l) states.store(l, sums[l]);
}

/// dv += weight * (x T + the products with the warp's own queries `f`), with x = f(k).
template <typename G, typename Map>
__device__ __forceinline__ void add_far_values(const Sequence<G>& at, const Fragment& state,
                                               Map map, int tile, const Fragments<G>& x,
                                               const Fragments<G> (&f)[kTiles], Blocks<G>& dv,
                                               WeightSums<G>& weight_sums) {
  Blocks<G> sum;
  begin_product(sum[0], x[0], state);
#pragma unroll
  for (int other = tile; other < kTiles; ++other) {
    Block scores;
    make_products<G>(scores, x, f[other]);
    Fragment inner = rounded(scores);
    if (other == tile) cut_at_diagonal</*kBefore=*/true>(inner);
    add_rows_of<G>(sum, inner, at.rows(kGradients, other));
  }
  add_values(at, index_of(map), tile, sum, dv, weight_sums);
}

/// The gradient of f(k): v w T^T - y + the products with the warp's own queries `f`.
template <typename G, typename Map>
__device__ __forceinline__ void feature_gradient(const Sequence<G>& at, const States<G>& states,
                                                 const Fragment& state, Map map, int tile,
                                                 const Fragments<G> (&f)[kTiles],
                                                 Blocks<G>& gradient) {
  const int l = index_of(map);
  const Weights<G> weights = at.weights();
  const float weight = weights.factor(l);
  Fragments<G> weighted;
  load<G>(weighted, at.rows(kValues, tile));
  weights.weigh(weighted, l);
  begin_product(gradient[0], weighted[0], turned(state));
  float y[1][4];
  states.key_sums(l).load(0, y);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float& element = gradient[0][i / 4][i % 4];
    element = weight * element - y[0][i / 4 * 2 + i % 2];
  }
#pragma unroll
  for (int other = tile; other < kTiles; ++other) {
    Block p;
    make_products<G>(p, weighted, at.rows(kGradients, other));
    float dots[4];
    load_dots(at, l, other, dots);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      p[i / 4][i % 4] = weight * p[i / 4][i % 4] - dots[i / 4 * 2 + i % 2];
    Fragment inner = rounded(p);
    if (other == tile) cut_at_diagonal</*kBefore=*/true>(inner);
    add_product(gradient[0], inner, turned(f[other][0]));
  }
}

/// dk and dv of a tile += the far fields' gradients, from states after the scan and sum_queries' f.
template <typename G>
__device__ __forceinline__ void far_key(const Sequence<G>& at, const States<G>& states, int tile,
                                        const Fragments<G> (&f)[G::kMaps][kTiles], Blocks<G>& dk,
                                        Blocks<G>& dv, WeightSums<G> (&weight_sums)[G::kMaps]) {
  const Inputs<G> k(at.rows(kKeys, tile));
  each_map<G>([&](auto map) {
    const int l = index_of(map);
    Fragments<G> x;
    k.features(map, x);
    const Fragment state = states.operand(l);
    add_far_values(at, state, map, tile, x, f[l], dv, weight_sums[l]);
    Blocks<G> gradient;
    feature_gradient(at, states, state, map, tile, f[l], gradient);
    add_input_gradient<G>(map, k, x, dk, gradient);
  });
}

}  // namespace fmmformer::cuda::whole
