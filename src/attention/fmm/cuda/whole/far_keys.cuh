// SPDX-License-Identifier: Apache-2.0
// One far field of a warp's 32 tokens, the keys' side of backward; T is the state of the queries
// after the warp's tokens.
#pragma once

#include "attention/fmm/cuda/whole/far.cuh"
#include "attention/fmm/cuda/whole/near.cuh"

namespace fmmformer::cuda::whole {

/// Sums for the gradient of a weight that differs by channel, of one field: over the warp's tokens
/// of v_j * (gradient of v before its weight). A lane has those of its rows and columns
/// 16 s + 8 n + 2t + p, [4 s + 2 n + p].
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
  /// Over the lanes' rows, into its memory. Lanes that differ in one bit of g share
  /// their numbers out, half for each, as long as they have two.
  __device__ __forceinline__ void store(const Sequence<G>& at, int field) {
    int count = kCount, first = 0;
#pragma unroll
    for (int bit = 16; bit >= 4; bit /= 2) {
      const bool upper = lane_id() & bit;
      if (count > 1) {
        count /= 2;
        first += upper ? count : 0;
#pragma unroll
        for (int i = 0; i < count; ++i) {
          const float given = upper ? sums[i] : sums[count + i],
                      kept = upper ? sums[count + i] : sums[i];
          sums[i] = kept + __shfl_xor_sync(~0u, given, bit);
        }
      } else {
        sums[0] += __shfl_xor_sync(~0u, sums[0], bit);
      }
    }
    if (kCount < 8 && lane_id() & 4) return;  // the same in both
    const int channel = first / 4 * kBlockDim + first % 4 / 2 * 8 + lane_id() % 4 * 2 + first % 2;
    at.template own<float>(G::kWeightSums)[field * G::kDim + channel] = sums[0];
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

/// Feature rows of queries, times far_scale / norm.
template <typename G, typename Map>
__device__ __forceinline__ void scaled_queries(const Sequence<G>& at, Map map, int tile,
                                               Fragments<G>& f) {
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) factor[r] = at.factors(index_of(map), tile)[row_of(2 * r)];
  Inputs<G>(at.rows(kQueries, tile)).features(map, f);
  strips::scale(f, factor);
}

/// dv += weight * (f(k) T + the products with the warp's own queries `f`).
template <typename G, typename Map>
__device__ __forceinline__ void add_far_values(const Sequence<G>& at, const States<G>& states,
                                               Map map, int tile, const Inputs<G>& k,
                                               const Fragments<G> (&f)[kTiles], Blocks<G>& dv,
                                               WeightSums<G>& weight_sums) {
  Fragments<G> x;
  Blocks<G> sum;
  k.features(map, x);
#pragma unroll
  for (int i = 0; i < G::kBlocks * G::kBlocks; ++i) {
    const int b = i / G::kBlocks, s = i % G::kBlocks;
    if (s == 0) begin_product(sum[b], x[s], states.operand(index_of(map), i));
    if (s > 0) add_product(sum[b], x[s], states.operand(index_of(map), i));
  }
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
                                                 Map map, int tile,
                                                 const Fragments<G> (&f)[kTiles],
                                                 Blocks<G>& gradient) {
  const int l = index_of(map);
  const Weights<G> weights = at.weights();
  const float weight = weights.factor(l);
  Fragments<G> weighted;
  load<G>(weighted, at.rows(kValues, tile));
  weights.weigh(weighted, l);
#pragma unroll
  for (int i = 0; i < G::kBlocks * G::kBlocks; ++i) {
    const int b = i / G::kBlocks, s = i % G::kBlocks;
    const Fragment sums = turned(states.operand(index_of(map), i));
    if (b == 0) begin_product(gradient[s], weighted[b], sums);
    if (b > 0) add_product(gradient[s], weighted[b], sums);
  }
  float y[G::kBlocks][4];
  states.key_sums(l).load(0, y);
#pragma unroll
  for (int i = 0; i < G::kBlocks * 8; ++i) {
    float& element = gradient[i / 8][i / 4 % 2][i % 4];
    element = weight * element - y[i / 8][i / 4 % 2 * 2 + i % 2];
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
#pragma unroll
    for (int s = 0; s < G::kBlocks; ++s) add_product(gradient[s], inner, turned(f[other][s]));
  }
}

/// dk[tile] and dv[tile] += the far fields' gradients. Barriers inside.
template <typename G>
__device__ __forceinline__ void far_key(const Sequence<G>& at, Blocks<G> (&dk)[kTiles], Blocks<G> (&dv)[kTiles]) {
  const States<G> states(at);
  Fragments<G> f[G::kMaps][kTiles];
  each_map<G>([&](auto map) {
    const int l = index_of(map);
    OwnSums<G> sums;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      scaled_queries(at, map, tile, f[l][tile]);
      Fragments<G> turned_f, turned_grad;
      strips::turn(turned_f, f[l][tile]);
      load_turned<G>(turned_grad, at.rows(kGradients, tile));
      sums.add(tile == 0, turned_grad, turned_f);
      float dots[4];
      load_dots(at, l, tile, dots);
      sums.add_rows(tile == 0, turned_f, Bf16::make_b(dots));
    }
    states.store(l, sums);
  });
  states.template scan<Scan::kAfter>(at.warps);
  each_map<G>([&](auto map) {
    const int l = index_of(map);
    WeightSums<G> weight_sums;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const Inputs<G> k(at.rows(kKeys, tile));
      add_far_values(at, states, map, tile, k, f[l], dv[tile], weight_sums);
      Blocks<G> gradient;
      feature_gradient(at, states, map, tile, f[l], gradient);
      k.add_input_gradient(map, dk[tile], gradient);
    }
    if (WeightSums<G>::wanted(at.args)) weight_sums.store(at, l);
  });
}

}  // namespace fmmformer::cuda::whole
