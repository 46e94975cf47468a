// SPDX-License-Identifier: Apache-2.0
// The far roles' work on sixteen tokens: one feature map, a part of its channels.
//
// The formulas are those of docs/math.md; each is a sum over feature channels, so that the parts'
// results add up; those of dq and dk are also sums over v's channels, so that slices add up too.
// Results with v's channels come without the blend weight. Tiles start at the role's part or slice;
// v's blocks are taken one by one, which leaves the registers to the state.
#pragma once

#include "attention/fmm/cuda/roles/features.cuh"
#include "attention/fmm/cuda/roles/state.cuh"

namespace fmmformer::cuda::roles {

/// Writes sixteen columns of a result, from `result` on.
__device__ __forceinline__ void store_block(float* result, int stride, const Block& rows) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    *reinterpret_cast<float2*>(result + row_of(j % 2 * 2) * stride + column_of(j / 2, 0)) =
        make_float2(rows[j / 2][j % 2 * 2], rows[j / 2][j % 2 * 2 + 1]);
  }
}
template <int kCount>
__device__ __forceinline__ void store_result(float* result, int stride,
                                             const Block (&rows)[kCount]) {
#pragma unroll
  for (int b = 0; b < kCount; ++b) store_block(result + b * kBlockDim, stride, rows[b]);
}

/// A block of rows of v or grad_out, times the weight unless that is equal for all channels: then
/// products with the rows are to be multiplied by uniform_weight().
template <typename G>
__device__ __forceinline__ Fragment load_weighted(const Elem* tile, int block, const float* weight,
                                                  const SweepArgs& args) {
  const Fragment rows = load(tile + block * kBlockDim, G::kValueStride);
  return args.uniform_weights ? rows : scaled_columns(rows, weight + block * kBlockDim);
}
__device__ __forceinline__ float uniform_weight(const float* weight, const SweepArgs& args) {
  return args.uniform_weights ? weight[0] : 1.f;
}

/// <f, key_sums> of both rows, in nearly full precision: what bf16 rounds away goes into a second
/// product.
template <typename G>
__device__ __forceinline__ void multiply_key_sums(float (&result)[2],
                                                  const Fragment (&f)[G::kPartBlocks],
                                                  const float (&key_sums)[G::kPartBlocks][4]) {
  float c[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
  for (int s = 0; s < G::kPartBlocks; ++s) Bf16::multiply_vector(c, f[s], key_sums[s]);
  result[0] = c[0], result[1] = c[2];
}
template <int kCount>
__device__ __forceinline__ void turn(Fragment (&turned_f)[kCount], const Fragment (&f)[kCount]) {
#pragma unroll
  for (int s = 0; s < kCount; ++s) turned_f[s] = turned(f[s]);
}

/// What is no sum over v's channels, and so must join the sum over slices but once.
template <typename G>
__device__ __forceinline__ float of_first_slice(const FarStep<G>& step, float x) {
  return G::kSlices == 1 || step.role.slice == 0 ? x : 0.f;
}

/// A state that does not change any more, as two-sided sweeps read it.
template <typename State>
struct FixedState {
  Fragment sums[State::kDown][State::kAcross];
  decltype(State::key_sums) key_sums;

  __device__ explicit FixedState(const State& state) {
#pragma unroll
    for (int d = 0; d < State::kDown; ++d) {
#pragma unroll
      for (int a = 0; a < State::kAcross; ++a) sums[d][a] = rounded(state.sums[d][a]);
    }
#pragma unroll
    for (int i = 0; i < int(sizeof(key_sums) / sizeof(float)); ++i) {
      key_sums[i / 4][i % 4] = state.key_sums[i / 4][i % 4];
    }
  }
};

template <typename G>
using ForwardState = State<G, /*kKeysAreRows=*/false>;

/// result = (sum_j f(q_i) f(k_j) v_j) far_scale / norm_i; writes the normalisers. Causal: the
/// step's keys join `state`; two-sided: `fixed` holds all keys.
template <typename G, bool kCausal>
__device__ __forceinline__ void far_forward(const FarStep<G>& step, const Elem* q_tile,
                                            const Elem* k_tile, const Elem* v_tile,
                                            ForwardState<G>& state,
                                            const FixedState<ForwardState<G>>& fixed,
                                            float* result) {
  const SweepArgs& args = step.args;
  const bool row_sums = args.normaliser == Normaliser::kRowSum;
  FeatureRows<G> q;
  q.make(step, q_tile, Exchange::kOfQueries);
  float total[2] = {0.f, 0.f};
  if (row_sums) {
    if constexpr (kCausal) multiply_key_sums<G>(total, q.f, state.key_sums);
    if constexpr (!kCausal) multiply_key_sums<G>(total, q.f, fixed.key_sums);
  }
  Fragment rounded_a, turned_k[G::kPartBlocks];
  if constexpr (kCausal) {
    FeatureRows<G> k;
    k.template make<Side::kRight>(step, k_tile, Exchange::kOfKeys);
    Block a;
    multiply(a, q.f, k.f);
    cut_at_diagonal</*kBefore=*/false>(a);
    keep_columns(a, step.live_rows);
    rounded_a = rounded(a);
    turn(turned_k, k.f);
    if (row_sums) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        total[r] += quad_sum((a[0][2 * r] + a[0][2 * r + 1]) + (a[1][2 * r] + a[1][2 * r + 1]));
      }
    }
    // A state that is kept promises its key sums under every normaliser.
    if (row_sums || args.made.sums) {
      add_key_sums<G>(state.key_sums, live_rows(step.live_rows), turned_k);
    }
  }
  if (row_sums) step.add_parts(total, Exchange::kRowSums);
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float norm = normaliser_of(args, step.map, total[r]);
    const int token = step.first + row_of(2 * r);
    if (row_sums && step.role.leads() && lane_id() % 4 == 0 && token < args.length) {
      step.normalisers[token] = norm;
    }
    factor[r] = __fdividef(args.far_scale, norm);
  }
#pragma unroll
  for (int b = 0; b < G::kSliceBlocks; ++b) {
    Block sum;
    clear(sum);
#pragma unroll
    for (int s = 0; s < G::kPartBlocks; ++s) {
      add_product(sum, q.f[s], kCausal ? rounded(state.sums[b][s]) : fixed.sums[b][s]);
    }
    if constexpr (kCausal) {
      const Fragment values = load_turned(v_tile + b * kBlockDim, G::kValueStride);
      add_product(sum, rounded_a, values);
#pragma unroll
      for (int s = 0; s < G::kPartBlocks; ++s) add_product(state.sums[b][s], values, turned_k[s]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i / 4][i % 4] *= factor[i % 4 / 2];
    store_block(result + b * kBlockDim, G::kValueDim + kResultPad, sum);
  }
}

/// Adds sixteen keys to a state of sums over keys.
template <typename G>
__device__ __forceinline__ void add_keys(const FarStep<G>& step, const Elem* k_tile,
                                         const Elem* v_tile, ForwardState<G>& state) {
  FeatureRows<G> k;
  k.make(step, k_tile, Exchange::kOfKeys);
  Fragment turned_k[G::kPartBlocks];
  turn(turned_k, k.f);
#pragma unroll
  for (int b = 0; b < G::kSliceBlocks; ++b) {
    const Fragment values = load_turned(v_tile + b * kBlockDim, G::kValueStride);
#pragma unroll
    for (int s = 0; s < G::kPartBlocks; ++s) add_product(state.sums[b][s], values, turned_k[s]);
  }
  add_key_sums<G>(state.key_sums, live_rows(step.live_rows), turned_k);
}

/// The normalisers of rows g and g + 8.
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
/// ... as far_scale / norm; 0 for dead rows.
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

/// u = sum_j <dO_i w, v_j> f(k_j) and z = sum_j f(k_j), over the keys that a query sees; causal
/// keys join the state.
template <typename G, bool kCausal>
__device__ __forceinline__ void sum_over_keys(const FarStep<G>& step, const Elem* grad_tile,
                                              const Elem* k_tile, const Elem* v_tile,
                                              QueryState<G>& state,
                                              const FixedState<QueryState<G>>& fixed,
                                              Block (&u)[G::kPartBlocks],
                                              Block (&z)[G::kPartBlocks]) {
  const SweepArgs& args = step.args;
  Block p;
  clear(p), clear(u);
#pragma unroll
  for (int b = 0; b < G::kSliceBlocks; ++b) {
    const Fragment grad = load_weighted<G>(grad_tile, b, step.weight, args);
#pragma unroll
    for (int s = 0; s < G::kPartBlocks; ++s) {
      add_product(u[s], grad, kCausal ? rounded(state.sums[s][b]) : fixed.sums[s][b]);
    }
    if (kCausal) {
      add_product(p, grad, load<Side::kRight>(v_tile + b * kBlockDim, G::kValueStride));
    }
  }
#pragma unroll
  for (int s = 0; s < G::kPartBlocks; ++s) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      z[s][i / 4][i % 4] = (kCausal ? state.key_sums : fixed.key_sums)[s][i / 4 * 2 + i % 2];
    }
  }
  if constexpr (kCausal) {
    FeatureRows<G> k;
    k.make(step, k_tile, Exchange::kOfKeys);
    Fragment turned_k[G::kPartBlocks];
    turn(turned_k, k.f);
    cut_at_diagonal</*kBefore=*/false>(p);
    const Fragment rounded_p = rounded(p), earlier = earlier_tokens(step.live_rows);
#pragma unroll
    for (int s = 0; s < G::kPartBlocks; ++s) {
      add_product(u[s], rounded_p, turned_k[s]);
      add_product(z[s], earlier, turned_k[s]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // the last row has seen all keys
        state.key_sums[s][i] = __shfl_sync(~0u, z[s][i / 2][2 + i % 2], 28 + lane_id() % 4);
      }
    }
#pragma unroll
    for (int b = 0; b < G::kSliceBlocks; ++b) {
      const Fragment values = load_turned<Side::kRight>(v_tile + b * kBlockDim, G::kValueStride);
#pragma unroll
      for (int s = 0; s < G::kPartBlocks; ++s) add_product(state.sums[s][b], turned_k[s], values);
    }
  }
}

/// result = the gradient with respect to the part's channels of q; writes the row dots. Returns
/// <dO, far field> of rows g and g + 8, over the part: the gradient of a weight that is equal for
/// all channels. Two-sided: `state` receives the sums over queries.
template <typename G, bool kCausal>
__device__ __forceinline__ float far_query(const FarStep<G>& step, const Elem* q_tile,
                                           const Elem* grad_tile, const Elem* k_tile,
                                           const Elem* v_tile, QueryState<G>& state,
                                           const FixedState<QueryState<G>>& fixed, float* result) {
  const SweepArgs& args = step.args;
  const float grad_factor = uniform_weight(step.weight, args);
  float norm[2], factor[2], dot[2];
  load_norms(step, norm);
  Block u[G::kPartBlocks], z[G::kPartBlocks];
  sum_over_keys<G, kCausal>(step, grad_tile, k_tile, v_tile, state, fixed, u, z);
  FeatureRows<G> q;
  q.make(step, q_tile, Exchange::kOfQueries);
  q.dot(u, dot);
  norm_factors(step, norm, factor);
  const float by_weight = factor[0] * dot[0] + factor[1] * dot[1];
  step.add_parts_and_slices(dot, Exchange::kDots);
  float* dots = step.shared_rows(Exchange::kAlong, step.role.index);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool varies = factor[r] != 0.f && normaliser_varies(args, step.map, norm[r]);
    dot[r] = varies ? __fdividef(dot[r] * grad_factor, norm[r]) : 0.f;
    const int token = step.first + row_of(2 * r);
    if (lane_id() % 4 == 0) {
      if (step.role.leads() && token < args.length) step.row_dots[token] = dot[r];
      if (!kCausal) dots[row_of(2 * r)] = dot[r];
    }
    const float u_factor = factor[r] * grad_factor,
                z_factor = of_first_slice(step, factor[r] * dot[r]);
#pragma unroll
    for (int s = 0; s < G::kPartBlocks; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& element = u[s][i / 2][2 * r + i % 2];
        element = u_factor * element - z_factor * z[s][i / 2][2 * r + i % 2];
      }
    }
  }
  if constexpr (!kCausal) {
    Fragment turned_q[G::kPartBlocks];
#pragma unroll
    for (int s = 0; s < G::kPartBlocks; ++s) turned_q[s] = turned(scaled_rows(q.f[s], factor));
#pragma unroll
    for (int b = 0; b < G::kSliceBlocks; ++b) {
      const Fragment grad = load_turned<Side::kRight>(grad_tile + b * kBlockDim, G::kValueStride);
#pragma unroll
      for (int s = 0; s < G::kPartBlocks; ++s) add_product(state.sums[s][b], turned_q[s], grad);
    }
    __syncwarp();
    const float* columns = dots + lane_id() % 4 * 2;
    add_key_sums<G>(
        state.key_sums,
        equal_rows(Bf16::pack(columns[0], columns[1]), Bf16::pack(columns[8], columns[9])),
        turned_q);
    __syncwarp();  // to_input may use the same place
  }
  q.to_input(u, step, q_tile);
  store_result(result, G::kKeyDim + kResultPad, u);
  return by_weight;
}

template <typename G>
using KeyState = State<G, /*kKeysAreRows=*/false>;

/// Query features times far_scale / norm, turned or not, and the queries' dots: what sums over
/// queries are made of.
template <typename G>
struct ScaledQueries {
  Fragment f[G::kPartBlocks], turned_f[G::kPartBlocks];
  float dots[4];  // of tokens 2t, 2t + 1, 8 + 2t, 8 + 2t + 1

  __device__ __forceinline__ void make(const FarStep<G>& step, const Elem* q_tile) {
    float norm[2], factor[2];
    load_norms(step, norm);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = step.first + column_of(i / 2, i);
      dots[i] = token < step.args.length ? step.row_dots[token] : 0.f;
    }
    FeatureRows<G> q;
    q.template make<Side::kRight>(step, q_tile, Exchange::kOfQueries);
    norm_factors(step, norm, factor);
#pragma unroll
    for (int s = 0; s < G::kPartBlocks; ++s) f[s] = scaled_rows(q.f[s], factor);
    turn(turned_f, f);
  }
  /// Adds a block of v's channels to the state of later queries; and their dots.
  __device__ __forceinline__ void add_to(Block (&sums)[G::kPartBlocks],
                                         const Fragment& turned_grad) const {
#pragma unroll
    for (int s = 0; s < G::kPartBlocks; ++s) add_product(sums[s], turned_grad, turned_f[s]);
  }
  __device__ __forceinline__ void add_dots_to(KeyState<G>& state) const {
    add_key_sums<G>(state.key_sums,
                    equal_rows(Bf16::pack(dots[0], dots[1]), Bf16::pack(dots[2], dots[3])),
                    turned_f);
  }
};

/// Adds sixteen queries to a state of sums over queries.
template <typename G>
__device__ __forceinline__ void add_queries(const FarStep<G>& step, const Elem* q_tile,
                                            const Elem* grad_tile, KeyState<G>& state) {
  ScaledQueries<G> q;
  q.make(step, q_tile);
#pragma unroll
  for (int b = 0; b < G::kSliceBlocks; ++b) {
    q.add_to(state.sums[b], load_turned(grad_tile + b * kBlockDim, G::kValueStride));
  }
  q.add_dots_to(state);
}

/// key_result = the gradient with respect to the part's channels of k; value_result = sum_i A_ij
/// dO_i over the part. Causal: the step's queries join `state`; two-sided: `fixed` holds all
/// queries.
template <typename G, bool kCausal>
__device__ __forceinline__ void far_key(const FarStep<G>& step, const Elem* q_tile,
                                        const Elem* grad_tile, const Elem* k_tile,
                                        const Elem* v_tile, KeyState<G>& state,
                                        const FixedState<KeyState<G>>& fixed, float* key_result,
                                        float* value_result) {
  const SweepArgs& args = step.args;
  FeatureRows<G> k;
  k.make(step, k_tile, Exchange::kOfKeys);
  ScaledQueries<G> q;
  Fragment rounded_a;
  if constexpr (kCausal) {
    q.make(step, q_tile);
    Block a;
    multiply(a, k.f, q.f);
    cut_at_diagonal</*kBefore=*/true>(a);
    rounded_a = rounded(a);
  }
  Block p, dk[G::kPartBlocks];
  clear(p), clear(dk);
#pragma unroll
  for (int b = 0; b < G::kSliceBlocks; ++b) {
    const Fragment v = load_weighted<G>(v_tile, b, step.weight, args);
    Block dv;
    clear(dv);
#pragma unroll
    for (int s = 0; s < G::kPartBlocks; ++s) {
      const Fragment sums = kCausal ? rounded(state.sums[b][s]) : fixed.sums[b][s];
      add_product(dv, k.f[s], sums);
      add_product(dk[s], v, turned(sums));
    }
    if constexpr (kCausal) {
      add_product(p, v, load<Side::kRight>(grad_tile + b * kBlockDim, G::kValueStride));
      const Fragment turned_grad = load_turned(grad_tile + b * kBlockDim, G::kValueStride);
      add_product(dv, rounded_a, turned_grad);
      q.add_to(state.sums[b], turned_grad);
    }
    store_block(value_result + b * kBlockDim, G::kValueDim + kResultPad, dv);
  }
  const float value_factor = uniform_weight(step.weight, args);
#pragma unroll
  for (int s = 0; s < G::kPartBlocks; ++s) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& element = dk[s][i / 4][i % 4];
      element =
          value_factor * element -
          of_first_slice(step, (kCausal ? state.key_sums : fixed.key_sums)[s][i / 4 * 2 + i % 2]);
    }
  }
  if constexpr (kCausal) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      p[i / 4][i % 4] =
          value_factor * p[i / 4][i % 4] - of_first_slice(step, q.dots[i / 4 * 2 + i % 2]);
    }
    cut_at_diagonal</*kBefore=*/true>(p);
    const Fragment rounded_p = rounded(p);
#pragma unroll
    for (int s = 0; s < G::kPartBlocks; ++s) add_product(dk[s], rounded_p, q.turned_f[s]);
    q.add_dots_to(state);
  }
  k.to_input(dk, step, k_tile);
  store_result(key_result, G::kKeyDim + kResultPad, dk);
}

}  // namespace fmmformer::cuda::roles
