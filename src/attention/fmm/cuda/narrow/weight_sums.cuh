// SPDX-License-Identifier: Apache-2.0
// Sums for the gradients of weights that differ by channel: over tokens of v_j * (gradient of v
// before its weight). Every warp has its own; in the keys' sweep a lane has those of one channel.
#pragma once

#include "attention/fmm/cuda/narrow/sequence.cuh"

namespace fmmformer::cuda::narrow {

/// The channel whose sums a lane has.
__device__ __forceinline__ uint32_t summed_channel(uint32_t lane) {
  return lane / 8 * 8 + lane % 4 * 2 + lane / 4 % 2;
}
/// Its sum over sixteen rows. Lanes that differ in a bit of g share their numbers out, half for
/// each, until each has one.
__device__ __forceinline__ float sum_channel(const Rows& rows, const Fragments& v, uint32_t lane) {
  float x[kBlocks * 4];
#pragma unroll
  for (int n = 0; n < kBlocks * 2; ++n) {
    const float* c = rows[n / 2][n % 2];
    float low, high;
    Bf16::unpack(v[n / 2].r[n % 2 * 2], low, high);
    x[2 * n] = low * c[0], x[2 * n + 1] = high * c[1];
    Bf16::unpack(v[n / 2].r[n % 2 * 2 + 1], low, high);
    x[2 * n] += low * c[2], x[2 * n + 1] += high * c[3];
  }
#pragma unroll
  for (int half = kBlocks * 2; half > 0; half /= 2) {
    const int bit = half * 4;
    const bool upper = lane & bit;
#pragma unroll
    for (int i = 0; i < half; ++i)
      x[i] = (upper ? x[half + i] : x[i]) + __shfl_xor_sync(~0u, upper ? x[i] : x[half + i], bit);
  }
  return x[0];
}

/// The warps' sums meet in shared memory, float [warps][fields][kDim].
template <typename G>
__device__ __forceinline__ float* weight_sum(const Sequence<G>& at, float* all, int field) {
  return all + (at.warp * G::kFields + field) * kDim + summed_channel(at.lane);
}
/// The block's row of args.weight_sums, by all threads, after a barrier.
template <typename G>
__device__ __forceinline__ void store_weight_sums(const Sequence<G>& at, const float* all) {
  for (int i = threadIdx.x; i < G::kFields * kDim; i += blockDim.x) {
    const int field = i / kDim;
    if (field == G::kMaps && !at.args.has_near) continue;
    float sum = 0.f;
    for (int warp = 0; warp < kWarps; ++warp) sum += all[warp * G::kFields * kDim + i];
    if (field == G::kMaps && G::kSweep == Sweep::kBoth) sum *= at.args.keep_factor;
    const int64_t row = at.pair * int64_t(at.args.all_maps + 1) + field;
    at.args.weight_sums[row * at.args.all_channels + i % kDim] = sum;
  }
}

}  // namespace fmmformer::cuda::narrow
