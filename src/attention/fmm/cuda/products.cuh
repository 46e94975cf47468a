// SPDX-License-Identifier: Apache-2.0
// Products of a warp's sixteen rows with tiles and states in shared memory.
#pragma once

#include "attention/fmm/cuda/tile.cuh"

namespace fmmformer::cuda {

/// C[16, 16] = A B^T for rows in registers and sixteen rows of a tile.
template <typename G, int kSteps>
__device__ __forceinline__ void multiply_rows(float (&c)[2][4],
                                              const typename G::Math::A (&a)[kSteps],
                                              const typename G::Elem* tile) {
  clear(c);
#pragma unroll G::kUnrolled
  for (int s = 0; s < kSteps; ++s) {
    typename G::Math::B b[2];
    G::Math::load_b(b, tile + s * 16, kSteps * 16 + G::Math::kPad);
    G::Math::multiply(c[0], a[s], b[0]);
    G::Math::multiply(c[1], a[s], b[1]);
  }
}

/// C[16, 16] as an operand.
template <typename G>
__device__ __forceinline__ typename G::Math::A as_operand(const float (&c)[2][4]) {
  return G::Math::make_a({c[0][0], c[0][1], c[0][2], c[0][3], c[1][0], c[1][1], c[1][2], c[1][3]});
}

/// sum[16, dim] += A[16, 16] tile[16, dim].
template <typename G, int kTiles>
__device__ __forceinline__ void add_product(float (&sum)[kTiles][4], const typename G::Math::A& a,
                                            const typename G::Elem* tile) {
#pragma unroll G::kUnrolled
  for (int n = 0; n < kTiles; n += 2) {
    typename G::Math::B b[2];
    G::Math::load_b_transposed(b, tile + n * 8, kTiles * 8 + G::Math::kPad);
    G::Math::multiply(sum[n], a, b[0]);
    G::Math::multiply(sum[n + 1], a, b[1]);
  }
}
template <typename G, int kTiles>
__device__ __forceinline__ void add_product(float (&sum)[kTiles][4], const float (&c)[2][4],
                                            const typename G::Elem* tile) {
  add_product<G>(sum, as_operand<G>(c), tile);
}

/// sum += A S, for a state S [kKeyDim][kValueStride].
template <typename G>
__device__ __forceinline__ void add_state_product(ValueRows<G>& sum,
                                                  const typename G::Math::A (&a)[G::kKeySteps],
                                                  const typename G::Elem* state) {
#pragma unroll G::kUnrolled
  for (int s = 0; s < G::kKeySteps; ++s) {
#pragma unroll
    for (int n = 0; n < G::kValueTiles; n += 2) {
      typename G::Math::B b[2];
      G::Math::load_b_transposed(b, state + s * 16 * G::kValueStride + n * 8, G::kValueStride);
      G::Math::multiply(sum[n], a[s], b[0]);
      G::Math::multiply(sum[n + 1], a[s], b[1]);
    }
  }
}
/// sum += A S^T.
template <typename G>
__device__ __forceinline__ void add_transposed_state_product(
    KeyRows<G>& sum, const typename G::Math::A (&a)[G::kValueSteps],
    const typename G::Elem* state) {
#pragma unroll
  for (int s = 0; s < G::kValueSteps; ++s) {
#pragma unroll G::kUnrolled
    for (int n = 0; n < G::kKeyTiles; n += 2) {
      typename G::Math::B b[2];
      G::Math::load_b(b, state + n * 8 * G::kValueStride + s * 16, G::kValueStride);
      G::Math::multiply(sum[n], a[s], b[0]);
      G::Math::multiply(sum[n + 1], a[s], b[1]);
    }
  }
}

/// Raw rows of q or k as operands.
template <typename G>
__device__ __forceinline__ void load_operands(typename G::Math::A (&a)[G::kKeySteps],
                                              const typename G::Elem* tile) {
#pragma unroll G::kUnrolled
  for (int s = 0; s < G::kKeySteps; ++s) a[s] = G::Math::load_a(tile + s * 16, G::kKeyStride);
}
/// Rows of v or grad_out times a weight, as operands. A weight that is equal for all channels is
/// left to the caller: returns what products with the operands are to be multiplied by.
template <typename G>
__device__ __forceinline__ float load_weighted(typename G::Math::A (&a)[G::kValueSteps],
                                               const typename G::Elem* tile, const float* weight,
                                               const SweepArgs& args) {
  if (args.uniform_weights) {
#pragma unroll
    for (int s = 0; s < G::kValueSteps; ++s) a[s] = G::Math::load_a(tile + s * 16, G::kValueStride);
    return weight[0];
  }
#pragma unroll
  for (int s = 0; s < G::kValueSteps; ++s) a[s] = scaled_a<G>(tile, weight, s);
  return 1.f;
}

/// out += weight * rows * factor, factor by row.
template <typename G>
__device__ __forceinline__ void add_weighted(ValueRows<G>& out, const ValueRows<G>& rows,
                                             const float (&factor)[2], const float* weight,
                                             const SweepArgs& args) {
  if (args.uniform_weights) {
    const float both[2] = {factor[0] * weight[0], factor[1] * weight[0]};
#pragma unroll
    for (int n = 0; n < G::kValueTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[n][i] += rows[n][i] * both[i / 2];
    }
    return;
  }
#pragma unroll
  for (int n = 0; n < G::kValueTiles; ++n) {
    const float2 w = *reinterpret_cast<const float2*>(weight + n * 8 + lane_id() % 4 * 2);
#pragma unroll
    for (int i = 0; i < 4; ++i) out[n][i] += (i % 2 ? w.y : w.x) * rows[n][i] * factor[i / 2];
  }
}

/// Adds numbers that the four lanes of a row share, summed over the warp's rows, to this warp's
/// `sum`.
__device__ __forceinline__ void add_row_sums(float* sum, float of_rows) {
#pragma unroll
  for (int other = 4; other < kWarpSize; other *= 2)
    of_rows += __shfl_xor_sync(~0u, of_rows, other);
  if (lane_id() == 0) *sum += of_rows;
}

/// Clears what a tile on the chunk's diagonal must not see: columns after the row, or (kBefore)
/// before it.
template <bool kBefore>
__device__ __forceinline__ void cut_at_diagonal(float (&c)[2][4]) {
  const int apart = lane_id() % 4 * 2 - lane_id() / 4;  // column minus row of element 0
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int offset = apart + n * 8 + i % 2 - i / 2 * 8;
      if (kBefore ? offset < 0 : offset > 0) c[n][i] = 0.f;
    }
  }
}

}  // namespace fmmformer::cuda
