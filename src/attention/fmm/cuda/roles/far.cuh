// SPDX-License-Identifier: Apache-2.0
// The far roles' work on sixteen tokens: one feature map, a part of v's channels.
//
// The formulas are those of docs/math.md. Each function leaves its part of the result, without the
// blend weight where the result has v's channels, in `result`; State is updated by it where causal.
#pragma once

#include "attention/fmm/cuda/roles/features.cuh"
#include "attention/fmm/cuda/roles/state.cuh"

namespace fmmformer::cuda::roles {

/// What a far role knows besides the tiles, which start at its part of v's channels.
template <typename G>
struct FarStep {
  const SweepArgs& args;
  Role role;
  FeatureMap map;
  float* normalisers;      // of the map, by token
  float* row_dots;         // likewise; backward only
  const float* weight;     // [kPartDim]
  int first = 0;           // token
  uint32_t live_rows = 0;  // bits of the step's tokens

  __device__ FarStep(const SweepArgs& args, const Place<G>& place, const Role& role,
                     const float* weight)
      : args(args), role(role), map(args.feature_maps[role.map]), weight(weight) {
    const int field = args.first_map + role.map;
    normalisers = args.normalisers + place.row_index(args, args.all_maps, field, 0);
    row_dots = args.row_dots + place.row_index(args, args.all_maps + 1, field, 0);
  }
};

template <int kCount>
__device__ __forceinline__ void store_result(float* result, int stride,
                                             const Block (&rows)[kCount]) {
#pragma unroll
  for (int b = 0; b < kCount; ++b) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      *reinterpret_cast<float2*>(result + row_of(j % 2 * 2) * stride + b * kBlockDim +
                                 column_of(j / 2, 0)) =
          make_float2(rows[b][j / 2][j % 2 * 2], rows[b][j / 2][j % 2 * 2 + 1]);
    }
  }
}

/// Rows of v or grad_out times the weight. A weight that is equal for all channels is left to the
/// caller: returns what products with the rows are to be multiplied by.
template <typename G, int kCount>
__device__ __forceinline__ float load_weighted(Fragment (&rows)[kCount], const Elem* tile,
                                               const float* weight, const SweepArgs& args) {
  load(rows, tile, G::kValueStride);
  if (args.uniform_weights) return weight[0];
#pragma unroll
  for (int b = 0; b < kCount; ++b) rows[b] = scaled_columns(rows[b], weight + b * kBlockDim);
  return 1.f;
}

/// <f, key_sums> of both rows, in nearly full precision: what bf16 rounds away goes into a second
/// product.
template <typename G>
__device__ __forceinline__ void multiply_key_sums(float (&result)[2],
                                                  const Fragment (&f)[G::kKeyBlocks],
                                                  const float (&key_sums)[G::kKeyBlocks][4]) {
  float c[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
  for (int s = 0; s < G::kKeyBlocks; ++s) {
    Bf16::multiply_vector(c, f[s], key_sums[s]);
  }
  result[0] = c[0], result[1] = c[2];
}

template <typename G>
using ForwardState = State<G, /*kKeysAreRows=*/false>;

template <typename G>
__device__ __forceinline__ void add_keys(ForwardState<G>& state, const Fragment (&k)[G::kKeyBlocks],
                                         const Fragment (&turned_values)[G::kPartBlocks],
                                         uint32_t live, bool row_sums) {
  Fragment turned_k[G::kKeyBlocks];
#pragma unroll
  for (int s = 0; s < G::kKeyBlocks; ++s) turned_k[s] = turned(k[s]);
#pragma unroll
  for (int b = 0; b < G::kPartBlocks; ++b) {
#pragma unroll
    for (int s = 0; s < G::kKeyBlocks; ++s) {
      add_product(state.sums[b][s], turned_values[b], turned_k[s]);
    }
  }
  if (row_sums) add_key_sums<G>(state.key_sums, live_rows(live), turned_k);
}

/// result = (sum_j f(q_i) f(k_j) v_j) far_scale / norm_i; writes the normalisers.
template <typename G, bool kCausal>
__device__ __forceinline__ void far_forward(const FarStep<G>& step, const Elem* q_tile,
                                            const Elem* k_tile, const Elem* v_tile,
                                            ForwardState<G>& state, float* result) {
  const SweepArgs& args = step.args;
  const bool row_sums = args.normaliser == Normaliser::kRowSum;
  FeatureRows<G> q;
  q.make(q_tile, step.map, args);
  Block sum[G::kPartBlocks];
  clear(sum);
#pragma unroll
  for (int b = 0; b < G::kPartBlocks; ++b) {
#pragma unroll
    for (int s = 0; s < G::kKeyBlocks; ++s) {
      add_product(sum[b], q.f[s], rounded(state.sums[b][s]));
    }
  }
  float total[2] = {0.f, 0.f};
  if (row_sums) multiply_key_sums<G>(total, q.f, state.key_sums);
  if constexpr (kCausal) {
    FeatureRows<G> k;
    k.make(k_tile, step.map, args);
    Fragment values[G::kPartBlocks];
    load_turned(values, v_tile, G::kValueStride);
    Block a;
    multiply(a, q.f, k.f);
    cut_at_diagonal</*kBefore=*/false>(a);
    keep_columns(a, step.live_rows);
    const Fragment rounded_a = rounded(a);
#pragma unroll
    for (int b = 0; b < G::kPartBlocks; ++b) add_product(sum[b], rounded_a, values[b]);
    if (row_sums) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        total[r] += quad_sum((a[0][2 * r] + a[0][2 * r + 1]) + (a[1][2 * r] + a[1][2 * r + 1]));
      }
    }
    add_keys<G>(state, k.f, values, step.live_rows, row_sums);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float norm = normaliser_of(args, step.map, total[r]);
    const int token = step.first + row_of(2 * r);
    if (row_sums && step.role.part == 0 && lane_id() % 4 == 0 && token < args.length) {
      step.normalisers[token] = norm;
    }
    const float factor = __fdividef(args.far_scale, norm);
#pragma unroll
    for (int b = 0; b < G::kPartBlocks; ++b) {
#pragma unroll
      for (int n = 0; n < 2; ++n) sum[b][n][2 * r] *= factor, sum[b][n][2 * r + 1] *= factor;
    }
  }
  store_result(result, G::kValueDim + kResultPad, sum);
}

/// The normalisers of rows g and g + 8 as far_scale / norm; 0 for dead rows.
template <typename G>
__device__ __forceinline__ void load_norms(const FarStep<G>& step, float (&norm)[2]) {
  const SweepArgs& args = step.args;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int token = step.first + row_of(2 * r);
    norm[r] = args.fixed_norm;
    if (args.normaliser == Normaliser::kRowSum && token < args.length) {
      norm[r] = step.normalisers[token];
    }
  }
}
template <typename G>
__device__ __forceinline__ void norm_factors(const FarStep<G>& step, const float (&norm)[2],
                                             float (&factor)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    factor[r] =
        step.live_rows >> row_of(2 * r) & 1 ? __fdividef(step.args.far_scale, norm[r]) : 0.f;
  }
}

template <typename G>
using QueryState = State<G, /*kKeysAreRows=*/true>;

/// Ones where the column's token is live and not after the row's.
__device__ __forceinline__ Fragment earlier_tokens(uint32_t live) {
  Fragment f = live_rows(live);
  const int row = lane_id() / 4, column = lane_id() % 4 * 2;
  const uint32_t keep = (column <= row ? 0xffffu : 0u) | (column + 1 <= row ? 0xffff0000u : 0u);
  f.r[0] &= keep, f.r[2] = 0, f.r[3] &= keep;
  return f;
}

/// result = the part's gradient with respect to q; `dots`: sum_c of the part's <dO, far field>, by
/// row, as the row dots need it. Returns <dO, far field> of rows g and g + 8: the gradient of a
/// weight that is equal for all channels. Two-sided: `state` is what the keys left, as fragments,
/// and `query_state` receives the sums over queries.
template <typename G, bool kCausal>
__device__ __forceinline__ float far_query(const FarStep<G>& step, const Elem* q_tile,
                                           const Elem* grad_tile, const Elem* k_tile,
                                           const Elem* v_tile, QueryState<G>& state,
                                           const Fragment (&fixed)[G::kKeyBlocks][G::kPartBlocks],
                                           const float (&fixed_key_sums)[G::kKeyBlocks][4],
                                           float* result, float* dots) {
  const SweepArgs& args = step.args;
  const bool row_sums = args.normaliser == Normaliser::kRowSum;
  float norm[2], factor[2];
  load_norms(step, norm);
  Block u[G::kKeyBlocks], z[G::kKeyBlocks];  // sum_j <dO_i, v_j> f(k_j) and sum_j f(k_j)
  clear(u);
#pragma unroll
  for (int s = 0; s < G::kKeyBlocks; ++s) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      z[s][i / 4][i % 4] = (kCausal ? state.key_sums : fixed_key_sums)[s][i / 4 * 2 + i % 2];
    }
  }
  float grad_factor;
  {
    Fragment grad[G::kPartBlocks];
    grad_factor = load_weighted<G>(grad, grad_tile, step.weight, args);
#pragma unroll
    for (int s = 0; s < G::kKeyBlocks; ++s) {
#pragma unroll
      for (int b = 0; b < G::kPartBlocks; ++b) {
        add_product(u[s], grad[b], kCausal ? rounded(state.sums[s][b]) : fixed[s][b]);
      }
    }
    if constexpr (kCausal) {
      FeatureRows<G> k;
      k.make(k_tile, step.map, args);
      Block p;
      {
        Fragment values[G::kPartBlocks];
        load<Side::kRight>(values, v_tile, G::kValueStride);
        multiply(p, grad, values);
      }
      cut_at_diagonal</*kBefore=*/false>(p);
      const Fragment rounded_p = rounded(p), earlier = earlier_tokens(step.live_rows);
      Fragment values[G::kPartBlocks];
      load_turned<Side::kRight>(values, v_tile, G::kValueStride);
#pragma unroll
      for (int s = 0; s < G::kKeyBlocks; ++s) {
        const Fragment turned_k = turned(k.f[s]);
        add_product(u[s], rounded_p, turned_k);
        if (row_sums) add_product(z[s], earlier, turned_k);
#pragma unroll
        for (int b = 0; b < G::kPartBlocks; ++b) add_product(state.sums[s][b], turned_k, values[b]);
        if (row_sums) {  // the last row has seen all keys
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            state.key_sums[s][i] = __shfl_sync(~0u, z[s][i / 2][2 + i % 2], 28 + lane_id() % 4);
          }
        }
      }
    }
  }
  FeatureRows<G> q;
  q.make(q_tile, step.map, args);
  float dot[2];
  q.dot(u, dot);
  norm_factors(step, norm, factor);
  const float by_weight = factor[0] * dot[0] + factor[1] * dot[1];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool varies = factor[r] != 0.f && normaliser_varies(args, step.map, norm[r]);
    dot[r] = varies ? __fdividef(dot[r] * grad_factor, norm[r]) : 0.f;
    if (lane_id() % 4 == 0) dots[row_of(2 * r)] = dot[r];
    const float u_factor = factor[r] * grad_factor, z_factor = factor[r] * dot[r];
#pragma unroll
    for (int s = 0; s < G::kKeyBlocks; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& element = u[s][i / 2][2 * r + i % 2];
        element = u_factor * element - z_factor * z[s][i / 2][2 * r + i % 2];
      }
    }
  }
  if constexpr (!kCausal) {
    Fragment grad[G::kPartBlocks], turned_q[G::kKeyBlocks];
    load_turned<Side::kRight>(grad, grad_tile, G::kValueStride);
#pragma unroll
    for (int s = 0; s < G::kKeyBlocks; ++s) {
      turned_q[s] = turned(scaled_rows(q.f[s], factor));
#pragma unroll
      for (int b = 0; b < G::kPartBlocks; ++b) add_product(state.sums[s][b], turned_q[s], grad[b]);
    }
    __syncwarp();
    const float* column_dots = dots + lane_id() % 4 * 2;
    add_key_sums<G>(state.key_sums,
                    equal_rows(Bf16::pack(column_dots[0], column_dots[1]),
                               Bf16::pack(column_dots[8], column_dots[9])),
                    turned_q);
  }
  q.to_input(u, q_tile, step.map, args);
  store_result(result, G::kKeyDim + kResultPad, u);
  return by_weight;
}

template <typename G>
using KeyState = State<G, /*kKeysAreRows=*/false>;

/// Query features times far_scale / norm, and as equal rows their dots; what sums over queries are
/// made of.
template <typename G>
struct ScaledQueries {
  Fragment f[G::kKeyBlocks];
  float dots[4];  // of tokens 2t, 2t + 1, 8 + 2t, 8 + 2t + 1

  __device__ __forceinline__ void make(const FarStep<G>& step, const Elem* q_tile) {
    const SweepArgs& args = step.args;
    float norm[2], factor[2];
    load_norms(step, norm);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = step.first + column_of(i / 2, i);
      dots[i] = token < args.length && step.role.part == 0 ? step.row_dots[token] : 0.f;
    }
    FeatureRows<G> q;
    q.make(q_tile, step.map, args);
    norm_factors(step, norm, factor);
#pragma unroll
    for (int s = 0; s < G::kKeyBlocks; ++s) f[s] = scaled_rows(q.f[s], factor);
  }
  /// Adds them, turned, to the state of later queries.
  __device__ __forceinline__ void add_to(KeyState<G>& state,
                                         const Fragment (&turned_f)[G::kKeyBlocks],
                                         const Fragment (&turned_grad)[G::kPartBlocks]) const {
#pragma unroll
    for (int b = 0; b < G::kPartBlocks; ++b) {
#pragma unroll
      for (int s = 0; s < G::kKeyBlocks; ++s) {
        add_product(state.sums[b][s], turned_grad[b], turned_f[s]);
      }
    }
    add_key_sums<G>(state.key_sums,
                    equal_rows(Bf16::pack(dots[0], dots[1]), Bf16::pack(dots[2], dots[3])),
                    turned_f);
  }
};

/// key_result = the part's gradient with respect to k; value_result = sum_i A_ij dO_i. Two-sided:
/// `fixed` and `fixed_key_sums` are what the queries left.
template <typename G, bool kCausal>
__device__ __forceinline__ void far_key(const FarStep<G>& step, const Elem* q_tile,
                                        const Elem* grad_tile, const Elem* k_tile,
                                        const Elem* v_tile, KeyState<G>& state, float* key_result,
                                        float* value_result) {
  const SweepArgs& args = step.args;
  FeatureRows<G> k;
  k.make(k_tile, step.map, args);
  Block dv[G::kPartBlocks], dk[G::kKeyBlocks];
  clear(dv), clear(dk);
  Fragment v[G::kPartBlocks];
  const float value_factor = load_weighted<G>(v, v_tile, step.weight, args);
#pragma unroll
  for (int b = 0; b < G::kPartBlocks; ++b) {
#pragma unroll
    for (int s = 0; s < G::kKeyBlocks; ++s) {
      const Fragment sums = rounded(state.sums[b][s]);
      add_product(dv[b], k.f[s], sums);
      add_product(dk[s], v[b], turned(sums));
    }
  }
#pragma unroll
  for (int s = 0; s < G::kKeyBlocks; ++s) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& element = dk[s][i / 4][i % 4];
      element = value_factor * element - state.key_sums[s][i / 4 * 2 + i % 2];
    }
  }
  if constexpr (kCausal) {
    ScaledQueries<G> q;
    q.make(step, q_tile);
    Block a;
    multiply(a, k.f, q.f);
    cut_at_diagonal</*kBefore=*/true>(a);
    const Fragment rounded_a = rounded(a);
    {
      Fragment grad[G::kPartBlocks];
      load<Side::kRight>(grad, grad_tile, G::kValueStride);
      multiply(a, v, grad);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      a[i / 4][i % 4] = value_factor * a[i / 4][i % 4] - q.dots[i / 4 * 2 + i % 2];
    }
    cut_at_diagonal</*kBefore=*/true>(a);
    const Fragment rounded_p = rounded(a);
    Fragment turned_grad[G::kPartBlocks], turned_q[G::kKeyBlocks];
    load_turned(turned_grad, grad_tile, G::kValueStride);
#pragma unroll
    for (int b = 0; b < G::kPartBlocks; ++b) add_product(dv[b], rounded_a, turned_grad[b]);
#pragma unroll
    for (int s = 0; s < G::kKeyBlocks; ++s) {
      turned_q[s] = turned(q.f[s]);
      add_product(dk[s], rounded_p, turned_q[s]);
    }
    q.add_to(state, turned_q, turned_grad);
  }
  store_result(value_result, G::kValueDim + kResultPad, dv);
  k.to_input(dk, k_tile, step.map, args);
  store_result(key_result, G::kKeyDim + kResultPad, dk);
}

}  // namespace fmmformer::cuda::roles
