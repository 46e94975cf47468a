// SPDX-License-Identifier: Apache-2.0
// The far fields of sixteen tokens, map by map. The formulas are those of docs/math.md; results
// with v's channels come without the blend weight until add_field.
#pragma once

#include "attention/fmm/cuda/features.cuh"
#include "attention/fmm/cuda/strips/near.cuh"
#include "attention/fmm/cuda/strips/sums.cuh"

namespace fmmformer::cuda::strips {

/// What a far field's functions know besides tiles and states.
template <typename G>
struct FarStep {
  const SweepArgs& args;
  Weights<G> weights;
  int tile = 0;
  uint32_t live = 0;  // bits of the tile's tokens

  __device__ bool row_sums() const { return args.normaliser == Normaliser::kRowSum; }
  /// far_scale / norm of rows g and g + 8; 0 for dead ones. `norms`: [16].
  __device__ __forceinline__ void factors(const float* norms, float (&norm)[2],
                                          float (&factor)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) norm[r] = row_sums() ? norms[row_of(2 * r)] : args.fixed_norm;
    factors(norm, factor);
  }
  __device__ __forceinline__ void factors(const float (&norm)[2], float (&factor)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      factor[r] = live >> row_of(2 * r) & 1 ? __fdividef(args.far_scale, norm[r]) : 0.f;
  }
};

template <typename G>
using ForwardStates = FarStates<G, /*kKeysAreRows=*/false>;
template <typename G>
using QueryStates = FarStates<G, /*kKeysAreRows=*/true>;
template <typename G>
using KeyStates = FarStates<G, /*kKeysAreRows=*/false>;

template <typename G>
__device__ __forceinline__ void load_turned_rows(Fragment (&f)[G::kBlocks], const Elem* tile) {
#pragma unroll
  for (int b = 0; b < G::kBlocks; ++b) f[b] = load_turned(tile + b * kBlockDim, G::kStride);
}

/// Adds sixteen keys to the states.
template <typename G, bool kKeysAreRows>
__device__ __forceinline__ void add_keys(const FarStep<G>& step, const Elem* k_tile,
                                         const Elem* v_tile, FarStates<G, kKeysAreRows>& states) {
  if ((step.live & 0xffffu) == 0) return;
  const Inputs<G> k(k_tile);
  Fragment values[G::kBlocks];
  load_turned_rows<G>(values, v_tile);
  each_map<G>([&](auto map) {
    constexpr int kMap = decltype(map)::value;
    Fragment f[G::kBlocks], turned_f[G::kBlocks];
    k.template features<kMap>(f);
    keep_live(f, step.live);
    turn(turned_f, f);
    states[kMap].add(turned_f, values);
    add_rows<G>(states[kMap].key_sums, turned_f);
  });
}

/// norms of rows g and g + 8 from row sums; written to `normalisers`, [maps][length].
template <typename G>
__device__ __forceinline__ void finish_norms(const FarStep<G>& step, int map,
                                             const float (&row_sum)[4], float* normalisers,
                                             float (&factor)[2]) {
  const SweepArgs& args = step.args;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float norm = step.row_sums() ? row_sum[2 * r] + args.eps : args.fixed_norm;
    const int token = step.tile * kBlockDim + row_of(2 * r);
    if (step.row_sums() && lane_id() % 4 == 0 && token < args.length)
      normalisers[int64_t(map) * args.length + token] = norm;
    factor[r] = __fdividef(args.far_scale, norm);
  }
}

/// out += weight * far field of the tile's queries, and its keys join the states.
template <typename G>
__device__ __forceinline__ void far_forward(const FarStep<G>& step, const Elem* q_tile,
                                            const Elem* k_tile, const Elem* v_tile,
                                            ForwardStates<G>& states, const KeySums<G>& key_sums,
                                            float* normalisers, Block (&out)[G::kBlocks]) {
  const Inputs<G> q(q_tile);
  const Inputs<G, Side::kRight> k(k_tile);
  Fragment values[G::kBlocks];
  load_turned_rows<G>(values, v_tile);
  each_map<G>([&](auto map) {
    constexpr int kMap = decltype(map)::value;
    auto& state = states[kMap];
    Fragment f[G::kBlocks], x[G::kBlocks];
    q.template features<kMap>(f);
    k.template features<kMap>(x);
    keep_live(x, step.live);
    Block a;
    multiply(a, f, x);
    Fragment rounded_a = rounded(a);
    cut_at_diagonal</*kBefore=*/false>(rounded_a);
    float row_sum[4] = {0.f, 0.f, 0.f, 0.f}, factor[2], z[G::kBlocks][4];
    key_sums.load(kMap, z);
    if (step.row_sums()) {
#pragma unroll
      for (int s = 0; s < G::kBlocks; ++s) Bf16::multiply(row_sum, f[s], Bf16::make_b(z[s]));

      Bf16::multiply(row_sum, rounded_a, {{kOnes, kOnes}});
    }
    Block sum[G::kBlocks];
    clear(sum);
#pragma unroll
    for (int b = 0; b < G::kBlocks; ++b) {
#pragma unroll
      for (int s = 0; s < G::kBlocks; ++s) add_product(sum[b], f[s], rounded(state.sums[b][s]));
      add_product(sum[b], rounded_a, values[b]);
    }
    finish_norms(step, kMap, row_sum, normalisers, factor);
    add_field<G>(out, sum, factor, step.weights, kMap);
    Fragment turned_x[G::kBlocks];
    turn(turned_x, x);
    state.add(turned_x, values);
    add_rows<G>(z, turned_x);
    key_sums.store(kMap, z);
  });
}
/// The same, two-sided.
template <typename G>
__device__ __forceinline__ void far_forward(const FarStep<G>& step, const Elem* q_tile,
                                            const FixedSums<G>& fixed, float* normalisers,
                                            Block (&out)[G::kBlocks]) {
  const Inputs<G> q(q_tile);
  each_map<G>([&](auto map) {
    constexpr int kMap = decltype(map)::value;
    Fragment f[G::kBlocks];
    q.template features<kMap>(f);
    float row_sum[4] = {0.f, 0.f, 0.f, 0.f}, factor[2];
    if (step.row_sums()) {
      float key_sums[G::kBlocks][4];
      fixed.key_sums.load(kMap, key_sums);
#pragma unroll
      for (int s = 0; s < G::kBlocks; ++s) Bf16::multiply(row_sum, f[s], Bf16::make_b(key_sums[s]));
    }
    Block sum[G::kBlocks];
    clear(sum);
#pragma unroll
    for (int i = 0; i < G::kBlocks * G::kBlocks; ++i) {
      const int b = i / G::kBlocks, s = i % G::kBlocks;
      add_product(sum[b], f[s], fixed.block(kMap, b, s));
    }
    finish_norms(step, kMap, row_sum, normalisers, factor);
    add_field<G>(out, sum, factor, step.weights, kMap);
  });
}

/// The queries' side of one map from u = sum_j <dO_i w, v_j> f(k_j) and z(s, i) = sum_j f(k_j),
/// element i of block s, over the keys that a query sees: dq += gradient; dot becomes the row dots.
/// Returns <dO, far field> of rows g and g + 8.
template <typename G, int kMap, typename KeySums>
__device__ __forceinline__ float finish_query(const FarStep<G>& step, const Inputs<G>& q,
                                              const Fragment (&f)[G::kBlocks],
                                              const float (&norm)[2], const float (&factor)[2],
                                              Block (&u)[G::kBlocks], const KeySums& z,
                                              float (&dot)[2], Block (&dq)[G::kBlocks]) {
  const float grad_factor = step.weights.factor(kMap);
  dot[0] = dot[1] = 0.f;
#pragma unroll
  for (int s = 0; s < G::kBlocks; ++s) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float low, high;
      Bf16::unpack(f[s].r[j], low, high);
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
  q.template add_input_gradient<kMap>(dq, u);
  return by_weight;
}
/// Norms of rows g and g + 8 from feature rows of queries and the sums of keys that each sees: of
/// what the backward sweep multiplies, rather than of the forward sweep's rounded products. A
/// weight's gradient is a sum of many terms of either sign, in which the difference shows.
template <typename G>
__device__ __forceinline__ void row_norms(const FarStep<G>& step, const Fragment (&f)[G::kBlocks],
                                          const Block (&z)[G::kBlocks], float (&norm)[2]) {
  norm[0] = norm[1] = 0.f;
#pragma unroll
  for (int s = 0; s < G::kBlocks; ++s) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float low, high;
      Bf16::unpack(f[s].r[j], low, high);
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
/// 1][length]; adds to by_weight. Where the gradient of weights is made here (kPlain: one a head),
/// with more care.
template <typename G, typename T>
__device__ __forceinline__ void far_query(const FarStep<G>& step, const T& tiles,
                                          const Elem* q_tile, const Elem* grad_tile,
                                          const Elem* k_tile, const Elem* v_tile,
                                          QueryStates<G>& states, const KeySums<G>& key_sums,
                                          float* row_dots, float (&by_weight)[G::kFields],
                                          Block (&dq)[G::kBlocks]) {
  const bool uniform = step.weights.uniform;
  const Inputs<G> q(q_tile), k(k_tile);
  Fragment inner, inner_rest;
  const auto make_inner = [&](const Fragment(&weighted)[G::kBlocks]) {
    Fragment rows[G::kBlocks];
    load<Side::kRight>(rows, v_tile, G::kStride);
    Block p;
    multiply(p, weighted, rows);
    inner = rounded(p);
    if constexpr (G::kPlain) {
      inner_rest = rounded_rest(p, inner);
      cut_at_diagonal</*kBefore=*/false>(inner_rest);
    }
    cut_at_diagonal</*kBefore=*/false>(inner);
  };
  each_map<G>([&](auto map) {
    constexpr int kMap = decltype(map)::value;
    auto& state = states[kMap];
    Fragment weighted[G::kBlocks], f[G::kBlocks], turned_x[G::kBlocks];
    load(weighted, grad_tile, G::kStride);
    step.weights.weigh(weighted, kMap);
    if (kMap == 0 || !uniform) make_inner(weighted);
    k.template features<kMap>(f);
    keep_live(f, step.live);
    turn(turned_x, f);
    float sums_before[G::kBlocks][4];
    key_sums.load(kMap, sums_before);
    Block u[G::kBlocks], z[G::kBlocks];
    clear(u);
    Fragment earlier = equal_rows(kOnes, kOnes);
    cut_at_diagonal</*kBefore=*/false>(earlier);
#pragma unroll
    for (int s = 0; s < G::kBlocks; ++s) {
#pragma unroll
      for (int b = 0; b < G::kBlocks; ++b)
        add_product(u[s], weighted[b], rounded(state.sums[s][b]));
      add_product(u[s], inner, turned_x[s]);
      if constexpr (G::kPlain) add_product(u[s], inner_rest, turned_x[s]);
#pragma unroll
      for (int i = 0; i < 8; ++i) z[s][i / 4][i % 4] = sums_before[s][i / 4 * 2 + i % 2];
      add_product(z[s], earlier, turned_x[s]);
    }
    key_sums.store_last_row(kMap, z);
    Fragment values[G::kBlocks];
    load_turned_rows<G>(values, v_tile);
    state.add(turned_x, values);
    float norm[2], factor[2], dot[2];
    q.template features<kMap>(f);
    if constexpr (G::kPlain) {
      row_norms<G>(step, f, z, norm);
      step.factors(norm, factor);
    } else {
      step.factors(tiles.number(kFirstNormOfQueries + kMap, step.tile * kBlockDim), norm, factor);
    }
    by_weight[kMap] += finish_query<G, kMap>(
        step, q, f, norm, factor, u, [&](int s, int i) { return z[s][i / 4][i % 4]; }, dot, dq);
    store_dots(step, dot, row_dots + int64_t(kMap) * step.args.length);
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
                                          const Elem* q_tile, const Elem* grad_tile,
                                          const FixedSums<G>& fixed, QueryStates<G>& states,
                                          const KeySums<G>& key_sums, float* row_dots,
                                          float (&by_weight)[G::kFields], Block (&dq)[G::kBlocks]) {
  const Inputs<G> q(q_tile);
  each_map<G>([&](auto map) {
    constexpr int kMap = decltype(map)::value;
    Fragment weighted[G::kBlocks], f[G::kBlocks], turned_f[G::kBlocks];
    load(weighted, grad_tile, G::kStride);
    step.weights.weigh(weighted, kMap);
    Block u[G::kBlocks];
    clear(u);
#pragma unroll
    for (int s = 0; s < G::kBlocks; ++s) {
#pragma unroll
      for (int b = 0; b < G::kBlocks; ++b)
        add_product(u[s], weighted[b], fixed.turned_block(kMap, b, s));
    }
    float norm[2], factor[2], dot[2], dots[4];
    step.factors(tiles.number(kFirstNormOfQueries + kMap, step.tile * kBlockDim), norm, factor);
    q.template features<kMap>(f);
    float z[G::kBlocks][4];
    fixed.key_sums.load(kMap, z);
    by_weight[kMap] += finish_query<G, kMap>(
        step, q, f, norm, factor, u, [&](int s, int i) { return z[s][i / 4 * 2 + i % 2]; }, dot,
        dq);
    store_dots(step, dot, row_dots + int64_t(kMap) * step.args.length);
    scale(f, factor);
    turn(turned_f, f);
    by_column(dot, dots);
    Fragment turned_grad[G::kBlocks];
    load_turned_rows<G>(turned_grad, grad_tile);
    states[kMap].add(turned_f, turned_grad);
    float y[G::kBlocks][4];
    key_sums.load(kMap, y);
    add_rows<G>(y, turned_f, Bf16::pack(dots[0], dots[1]), Bf16::pack(dots[2], dots[3]));
    key_sums.store(kMap, y);
  });
}

/// Query features times far_scale / norm, and the queries' dots: what sums over queries are made
/// of. `numbers`: the first of the maps' norms in the ring; their dots follow.
template <typename G, int kMap, typename T, Side kSide>
__device__ __forceinline__ void scaled_queries(const FarStep<G>& step, const T& tiles,
                                               const Inputs<G, kSide>& q, int numbers,
                                               Fragment (&f)[G::kBlocks], float (&dots)[4]) {
  const int first = step.tile * kBlockDim;
  float norm[2], factor[2];
  step.factors(tiles.number(numbers + kMap, first), norm, factor);
  q.template features<kMap>(f);
  scale(f, factor);
  const float* from = tiles.number(numbers + G::kMaps + kMap, first) + lane_id() % 4 * 2;
  dots[0] = from[0], dots[1] = from[1], dots[2] = from[8], dots[3] = from[9];
}
constexpr int kFirstNormOfKeys = 2;  // among the numbers of the keys' sweep: after log_sum_exp, dot

/// Adds sixteen queries to the states.
template <typename G, typename T>
__device__ __forceinline__ void add_queries(const FarStep<G>& step, const T& tiles,
                                            KeyStates<G>& states) {
  if ((step.live & 0xffffu) == 0) return;
  const Inputs<G> q(tiles.band_tile(0, step.tile));
  Fragment turned_grad[G::kBlocks];
  load_turned_rows<G>(turned_grad, tiles.band_tile(1, step.tile));
  each_map<G>([&](auto map) {
    constexpr int kMap = decltype(map)::value;
    Fragment f[G::kBlocks], turned_f[G::kBlocks];
    float dots[4];
    scaled_queries<G, kMap>(step, tiles, q, kFirstNormOfKeys, f, dots);
    turn(turned_f, f);
    states[kMap].add(turned_f, turned_grad);
    add_rows<G>(states[kMap].key_sums, turned_f, Bf16::pack(dots[0], dots[1]),
                Bf16::pack(dots[2], dots[3]));
  });
}

/// One map's share of the keys' side: dk_part = v T^T and value_sum = f(k) T come in; out go
/// gradients of k, by way of the slope, and of v.
template <typename G>
struct KeyResults {
  Block dk[G::kBlocks], dv[G::kBlocks];
  WeightSums<G> weight_sums;

  template <int kMap>
  __device__ __forceinline__ void add(const FarStep<G>& step, const Inputs<G>& k,
                                      const Elem* v_tile, const Block (&dk_part)[G::kBlocks],
                                      const Block (&value_sum)[G::kBlocks]) {
    add_values(step, kMap, v_tile, value_sum);
    k.template add_input_gradient<kMap>(dk, dk_part);
  }
  __device__ __forceinline__ void add_values(const FarStep<G>& step, int field, const Elem* v_tile,
                                             const Block (&value_sum)[G::kBlocks]) {
    const float ones[2] = {1.f, 1.f};
    weight_sums.add(field, value_sum, v_tile);
    add_field<G>(dv, value_sum, ones, step.weights, field);
  }
};

/// Adds the far fields' gradients, and the tile's queries join the states.
template <typename G, typename T>
__device__ __forceinline__ void far_key(const FarStep<G>& step, const T& tiles, const Elem* k_tile,
                                        const Elem* v_tile, KeyStates<G>& states,
                                        const KeySums<G>& key_sums, KeyResults<G>& results) {
  const bool uniform = step.weights.uniform;
  const Elem* grad_tile = tiles.band_tile(1, step.tile);
  const Inputs<G, Side::kRight> q(tiles.band_tile(0, step.tile));
  const Inputs<G> k(k_tile);
  Block p;
  each_map<G>([&](auto map) {
    constexpr int kMap = decltype(map)::value;
    auto& state = states[kMap];
    Fragment f[G::kBlocks], turned_f[G::kBlocks], turned_grad[G::kBlocks], weighted[G::kBlocks];
    float dots[4], y[G::kBlocks][4];
    scaled_queries<G, kMap>(step, tiles, q, kFirstNormOfKeys, f, dots);
    turn(turned_f, f);
    load_turned_rows<G>(turned_grad, grad_tile);
    load(weighted, v_tile, G::kStride);
    step.weights.weigh(weighted, kMap);
    Block dk[G::kBlocks], value_sum[G::kBlocks];
    clear(dk), clear(value_sum);
    {
      Fragment x[G::kBlocks];
      k.template features<kMap>(x);
      Block a;
      multiply(a, x, f);
      Fragment inner = rounded(a);
      cut_at_diagonal</*kBefore=*/true>(inner);
#pragma unroll
      for (int b = 0; b < G::kBlocks; ++b) {
#pragma unroll
        for (int s = 0; s < G::kBlocks; ++s) {
          const Fragment sums = rounded(state.sums[b][s]);
          add_product(value_sum[b], x[s], sums);
          add_product(dk[s], weighted[b], turned(sums));
        }
        add_product(value_sum[b], inner, turned_grad[b]);
      }
    }
    state.add(turned_f, turned_grad);
    if (kMap == 0 || !uniform) {
      Fragment grad[G::kBlocks];
      load<Side::kRight>(grad, grad_tile, G::kStride);
      multiply(p, weighted, grad);
    }
    const float factor = step.weights.factor(kMap);
    Block inner_p;
#pragma unroll
    for (int i = 0; i < 8; ++i)
      inner_p[i / 4][i % 4] = factor * p[i / 4][i % 4] - dots[i / 4 * 2 + i % 2];
    Fragment inner = rounded(inner_p);
    cut_at_diagonal</*kBefore=*/true>(inner);
    key_sums.load(kMap, y);
#pragma unroll
    for (int s = 0; s < G::kBlocks; ++s) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        float& element = dk[s][i / 4][i % 4];
        element = factor * element - y[s][i / 4 * 2 + i % 2];
      }
      add_product(dk[s], inner, turned_f[s]);
    }
    add_rows<G>(y, turned_f, Bf16::pack(dots[0], dots[1]), Bf16::pack(dots[2], dots[3]));
    key_sums.store(kMap, y);
    results.template add<kMap>(step, k, v_tile, dk, value_sum);
  });
}
/// The same, two-sided.
template <typename G>
__device__ __forceinline__ void far_key(const FarStep<G>& step, const Elem* k_tile,
                                        const Elem* v_tile, const FixedSums<G>& fixed,
                                        KeyResults<G>& results) {
  const Inputs<G> k(k_tile);
  each_map<G>([&](auto map) {
    constexpr int kMap = decltype(map)::value;
    Fragment x[G::kBlocks], weighted[G::kBlocks];
    k.template features<kMap>(x);
    load(weighted, v_tile, G::kStride);
    step.weights.weigh(weighted, kMap);
    Block dk[G::kBlocks], value_sum[G::kBlocks];
    clear(dk), clear(value_sum);
#pragma unroll
    for (int i = 0; i < G::kBlocks * G::kBlocks; ++i) {
      const int b = i / G::kBlocks, s = i % G::kBlocks;
      add_product(value_sum[b], x[s], fixed.block(kMap, b, s));
      add_product(dk[s], weighted[b], fixed.turned_block(kMap, b, s));
    }
    const float factor = step.weights.factor(kMap);
    float y[G::kBlocks][4];
    fixed.key_sums.load(kMap, y);
#pragma unroll
    for (int i = 0; i < G::kBlocks * 8; ++i) {
      float& element = dk[i / 8][i / 4 % 2][i % 4];
      element = factor * element - y[i / 8][i / 4 % 2 * 2 + i % 2];
    }
    results.template add<kMap>(step, k, v_tile, dk, value_sum);
  });
}

}  // namespace fmmformer::cuda::strips
