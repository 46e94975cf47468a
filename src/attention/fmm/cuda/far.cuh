// SPDX-License-Identifier: Apache-2.0
// The far field of sixteen rows a warp: products with the other rows of the chunk (causal) and with
// the state.
#pragma once

#include "attention/fmm/cuda/far_state.cuh"
#include "attention/fmm/cuda/features.cuh"
#include "attention/fmm/cuda/products.cuh"

namespace fmmformer::cuda {

/// The normaliser that forward saved; 1 beyond the sequence and for dead rows.
template <typename G>
__device__ float saved_normaliser(const SweepArgs& args, const Place<G>& place, int map,
                                  int token) {
  if (args.normaliser != Normaliser::kRowSum) return args.fixed_norm;
  if (!place.live(args, token)) return 1.f;
  return args.normalisers[place.row_index(args, args.all_maps, args.first_map + map, token)];
}

/// out += weight * far_scale * f(q) (...) / norm; writes the normalisers. `features`: of the
/// chunk's keys; `values`: their values. The padding of values holds a column of ones, that of the
/// state the key sums: one more column tile of the products is the row sum.
template <typename G>
__device__ __forceinline__ void far_forward(const SweepArgs& args, const Place<G>& place, int chunk,
                                            int map, const typename G::Elem* q_tile,
                                            const typename G::Elem* features,
                                            const typename G::Elem* values,
                                            const typename G::Elem* state, const float* weight,
                                            ValueRows<G>& out) {
  using Math = typename G::Math;
  FeatureRows<G> q;
  q.make(q_tile, args.feature_maps[map], args);
  ValueRows<G> sum;
  clear(sum);
  float row_sum[4] = {0.f, 0.f, 0.f, 0.f};
  if (args.causal) {
    const auto add_tile = [&](const float(&a)[2][4], int tile) {
      const typename Math::A operand = as_operand<G>(a);
      const typename G::Elem* rows = values + tile * 16 * G::kValueStride;
      add_product<G>(sum, operand, rows);
      Math::multiply(row_sum, operand,
                     Math::load_b_transposed(rows + G::kValueDim, G::kValueStride));
    };
    float a[2][4];
#pragma unroll 1
    for (int tile = 0; tile < place.warp; ++tile) {
      multiply_rows<G>(a, q.a, features + tile * 16 * G::kKeyStride);
      add_tile(a, tile);
    }
    multiply_rows<G>(a, q.a, features + place.warp * 16 * G::kKeyStride);
    cut_at_diagonal</*kBefore=*/false>(a);
    add_tile(a, place.warp);
  }
  add_state_product<G>(sum, q.a, state);
#pragma unroll G::kUnrolled
  for (int s = 0; s < G::kKeySteps; ++s) {
    Math::multiply(
        row_sum, q.a[s],
        Math::load_b_transposed(state + s * 16 * G::kValueStride + G::kValueDim, G::kValueStride));
  }
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    // The first lane of four holds the sum's two columns.
    const float total = __shfl_sync(~0u, row_sum[2 * r] + row_sum[2 * r + 1], lane_id() & ~3);
    const float norm = normaliser_of(args, args.feature_maps[map], total);
    const int token = chunk + place.row(2 * r);
    if (args.normaliser == Normaliser::kRowSum && place.t == 0 && token < args.length) {
      args.normalisers[place.row_index(args, args.all_maps, args.first_map + map, token)] = norm;
    }
    factor[r] = args.far_scale / norm;
  }
  add_weighted<G>(out, sum, factor, weight, args);
}

/// dq += the far field's part; writes its row dots, and, two-sided, the scaled query features and
/// dots that the sum over queries needs. `norms`: the rows' normalisers.
template <typename G>
__device__ __forceinline__ void far_query(
    const SweepArgs& args, const Place<G>& place, int chunk, int map,
    const typename G::Elem* q_tile, const typename G::Elem* grad_tile, typename G::Elem* features,
    const typename G::Elem* values, const typename G::Elem* state, const float* key_sums,
    const float* weight, const float* norms, float* dots, float* weight_sum, KeyRows<G>& dq) {
  using Math = typename G::Math;
  const bool row_sums = args.normaliser == Normaliser::kRowSum;
  KeyRows<G> u, z;  // sum_j <dO_i, v_j> f(k_j) and sum_j f(k_j)
  clear(u);
#pragma unroll G::kUnrolled
  for (int n = 0; n < G::kKeyTiles; ++n) {
    const float2 sums = *reinterpret_cast<const float2*>(key_sums + place.column(n, 0));
    z[n][0] = z[n][2] = sums.x, z[n][1] = z[n][3] = sums.y;
  }
  float grad_factor;
  {
    typename Math::A grad[G::kValueSteps];
    grad_factor = load_weighted<G>(grad, grad_tile, weight, args);
    if (args.causal) {
      const auto add_tile = [&](const float(&dp)[2][4], const float(&ones)[2][4], int tile) {
        const typename Math::A a = as_operand<G>(dp), one = as_operand<G>(ones);
#pragma unroll G::kUnrolled
        for (int n = 0; n < G::kKeyTiles; n += 2) {
          typename Math::B b[2];
          Math::load_b_transposed(b, features + tile * 16 * G::kKeyStride + n * 8, G::kKeyStride);
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            Math::multiply(u[n + c], a, b[c]);
            if (row_sums) Math::multiply(z[n + c], one, b[c]);
          }
        }
      };
      float dp[2][4], ones[2][4] = {{1.f, 1.f, 1.f, 1.f}, {1.f, 1.f, 1.f, 1.f}};
#pragma unroll 1
      for (int tile = 0; tile < place.warp; ++tile) {
        multiply_rows<G>(dp, grad, values + tile * 16 * G::kValueStride);
        add_tile(dp, ones, tile);
      }
      multiply_rows<G>(dp, grad, values + place.warp * 16 * G::kValueStride);
      cut_at_diagonal</*kBefore=*/false>(dp), cut_at_diagonal</*kBefore=*/false>(ones);
      add_tile(dp, ones, place.warp);
    }
    add_transposed_state_product<G>(u, grad, state);
  }
  FeatureRows<G> q;
  q.make(q_tile, args.feature_maps[map], args);
  float dot[2], factor[2], u_factor[2], z_factor[2];
  q.dot(u, dot);
  const uint32_t live_rows = place.live_bits(args, chunk + place.warp * 16);
  float by_weight = 0.f;  // <dO, far field> without the weight: the weight's gradient
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int token = chunk + place.row(2 * r);
    const float norm = norms[place.row(2 * r)];
    const bool live = live_rows >> (place.g + 8 * r) & 1;
    factor[r] = live ? args.far_scale / norm : 0.f;
    if (live) by_weight += factor[r] * dot[r];
    const bool varies = live && normaliser_varies(args, args.feature_maps[map], norm);
    dot[r] = varies ? dot[r] * grad_factor / norm : 0.f;
    u_factor[r] = factor[r] * grad_factor, z_factor[r] = factor[r] * dot[r];
    if (place.t == 0 && token < args.length) {
      args.row_dots[place.row_index(args, args.all_maps + 1, args.first_map + map, token)] = dot[r];
    }
    if (!args.causal && place.t == 0) dots[place.row(2 * r)] = dot[r];
  }
  if (weight_sum) add_row_sums(weight_sum, by_weight);
  if (!args.causal) {
#pragma unroll G::kUnrolled
    for (int s = 0; s < G::kKeySteps; ++s) {
      float f[8];
      Math::values(q.a[s], f);
#pragma unroll
      for (int i = 0; i < 8; i += 2) {
        const int row = place.row(i % 4), column = s * 16 + i / 4 * 8 + 2 * place.t;
        Math::store_pair(features + row * G::kKeyStride + column, f[i] * factor[i / 2 % 2],
                         f[i + 1] * factor[i / 2 % 2]);
      }
    }
  }
#pragma unroll G::kUnrolled
  for (int n = 0; n < G::kKeyTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) u[n][i] = u_factor[i / 2] * u[n][i] - z_factor[i / 2] * z[n][i];
  }
  q.add_input_gradient(u, q_tile, args.feature_maps[map], args, dq);
}

/// The gradient of a weight by channel, sum_j v_j * dv_j, added to `sums` [kValueDim] of this warp.
template <typename G>
__device__ __forceinline__ void add_weight_sums(const ValueRows<G>& dv,
                                                const typename G::Elem* v_tile,
                                                const Place<G>& place, float* sums) {
#pragma unroll
  for (int s = 0; s < G::kValueSteps; ++s) {
    float v[8];
    G::Math::values(G::Math::load_a(v_tile + s * 16, G::kValueStride), v);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        float sum =
            v[half * 4 + p] * dv[2 * s + half][p] + v[half * 4 + 2 + p] * dv[2 * s + half][2 + p];
#pragma unroll
        for (int other = 4; other < kWarpSize; other *= 2) sum += __shfl_xor_sync(~0u, sum, other);
        if (place.g == 0) sums[place.column(2 * s + half, p)] += sum;
      }
    }
  }
}

/// dk and dv += the far field's part. `features`: of the chunk's queries, scaled by far_scale /
/// norm; `grads`: their grad_out; `state`, `query_sums`: the same over later chunks (two-sided:
/// over all).
template <typename G>
__device__ __forceinline__ void far_key(
    const SweepArgs& args, const Place<G>& place, int map, const typename G::Elem* k_tile,
    const typename G::Elem* v_tile, const typename G::Elem* features, const typename G::Elem* grads,
    const typename G::Elem* state, const float* query_sums, const float* weight, const float* dots,
    float* weight_sums, KeyRows<G>& dk, ValueRows<G>& dv) {
  using Math = typename G::Math;
  FeatureRows<G> k;
  k.make(k_tile, args.feature_maps[map], args);
  {
    ValueRows<G> sum;
    clear(sum);
    if (args.causal) {
      float a[2][4];
      multiply_rows<G>(a, k.a, features + place.warp * 16 * G::kKeyStride);
      cut_at_diagonal</*kBefore=*/true>(a);
      add_product<G>(sum, a, grads + place.warp * 16 * G::kValueStride);
#pragma unroll 1
      for (int tile = place.warp + 1; tile < G::kWarps; ++tile) {
        multiply_rows<G>(a, k.a, features + tile * 16 * G::kKeyStride);
        add_product<G>(sum, a, grads + tile * 16 * G::kValueStride);
      }
    }
    add_state_product<G>(sum, k.a, state);
    if (weight_sums) add_weight_sums<G>(sum, v_tile, place, weight_sums);
    add_weighted<G>(dv, sum, {1.f, 1.f}, weight, args);
  }
  KeyRows<G> sum;
  clear(sum);
  typename Math::A v[G::kValueSteps];
  const float value_factor = load_weighted<G>(v, v_tile, weight, args);
  add_transposed_state_product<G>(sum, v, state);
#pragma unroll G::kUnrolled
  for (int n = 0; n < G::kKeyTiles; ++n) {
    const float2 sums = *reinterpret_cast<const float2*>(query_sums + place.column(n, 0));
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[n][i] = value_factor * sum[n][i] - (i % 2 ? sums.y : sums.x);
  }
  if (args.causal) {
    const auto products = [&](float(&dp)[2][4], int tile) {
      multiply_rows<G>(dp, v, grads + tile * 16 * G::kValueStride);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float2 dot = *reinterpret_cast<const float2*>(dots + tile * 16 + place.column(n, 0));
#pragma unroll
        for (int i = 0; i < 4; ++i) dp[n][i] = value_factor * dp[n][i] - (i % 2 ? dot.y : dot.x);
      }
    };
    float dp[2][4];
    products(dp, place.warp);
    cut_at_diagonal</*kBefore=*/true>(dp);
    add_product<G>(sum, dp, features + place.warp * 16 * G::kKeyStride);
#pragma unroll 1
    for (int tile = place.warp + 1; tile < G::kWarps; ++tile) {
      products(dp, tile);
      add_product<G>(sum, dp, features + tile * 16 * G::kKeyStride);
    }
  }
  k.add_input_gradient(sum, k_tile, args.feature_maps[map], args, dk);
}

}  // namespace fmmformer::cuda
