// SPDX-License-Identifier: Apache-2.0
// Sums for the gradients of weights, over all sequences of a block, and what becomes of them.
//
// Of weights that belong to a head, blocks make the gradients themselves: a block hands in its sums
// and draws a ticket, and who draws a head's last one adds up those of all its blocks, in their
// order. The sums are made by the queries' side of a block's last sequence, so that the keys' side
// hides most of this; a launch of its own took three microseconds. Tickets must be zero before:
// forward clears them, and the last one drawn leaves zero.
#pragma once

#include "attention/fmm/cuda/weight_gradients.cuh"
#include "attention/fmm/cuda/whole/sequence.cuh"

namespace fmmformer::cuda::whole {

/// A warp's, [fields][channels] in its memory.
template <typename G>
__device__ __forceinline__ void clear_weight_sums(const Sequence<G>& at) {
  for (int i = lane_id(); i < G::kFields * G::kDim; i += kWarpSize)
    at.template own<float>(G::kWeightSums)[i] = 0.f;
}
/// Those that are equal for all channels: by_weight is that of the quad's rows.
template <typename G>
__device__ __forceinline__ void add_weight_sums(const Sequence<G>& at,
                                                const float (&by_weight)[G::kFields]) {
  if (!strips::uniform_weights<G>(at.args) || lane_id() % 4 != 0) return;
#pragma unroll
  for (int field = 0; field < G::kFields; ++field)
    at.template own<float>(G::kWeightSums)[field * G::kDim + lane_id() / 4] += by_weight[field];
}
/// The block's rows of args.weight_sums: the first sequence's gets all, those of the others zeros.
/// A barrier inside.
template <typename G>
__device__ void store_weight_sums(const SweepArgs& args) {
  const Sequence<G> first(args);
  const bool uniform = strips::uniform_weights<G>(args);
  __syncthreads();
  for (int i = threadIdx.x; i < G::kFields * G::kDim; i += blockDim.x) {
    const int field = i / G::kDim, channel = i % G::kDim;
    if (field == G::kMaps && !args.has_near) continue;
    float sum = 0.f;
    for (int warp = 0; warp < first.warps && (!uniform || channel == 0); ++warp) {
      const float* of_warp = shared_at<float>(G::kWarps + warp * G::kWarpBytes + G::kWeightSums);
#pragma unroll
      for (int quad = 0; quad < (uniform ? kWarpSize / 4 : 1); ++quad) sum += of_warp[i + quad];
    }
    for (Sequence<G> at = first; at.exists(); at.advance(), sum = 0.f)
      args.weight_sums[(at.pair() * int64_t(args.all_maps + 1) + field) * args.all_channels +
                       channel] = sum;
  }
}

/// [fields][heads].
template <typename G>
__device__ __forceinline__ unsigned* ticket(const Sequence<G>& at, int field) {
  return reinterpret_cast<unsigned*>(at.args.chunk_states) + field * at.args.heads + at.h;
}
template <typename G>
__device__ __forceinline__ void clear_tickets(const Sequence<G>& at) {
  if (blockIdx.y == 0 && threadIdx.x < G::kFields) *ticket(at, threadIdx.x) = 0;
}

/// Gradients of weights that belong to a head, a field a warp (so that there must be as many), in
/// three steps with other work between them.
template <typename G>
struct WeightReduction {
  const Sequence<G>& at;
  int field, blocks;  // of a head
  float* handed_in;   // [blocks], of [fields][heads]

  __device__ __forceinline__ WeightReduction(const Sequence<G>& at, int field)
      : at(at), field(field), blocks(gridDim.y) {
    handed_in = at.args.weight_sums + (field * at.args.heads + at.h) * blocks;
  }
  /// The block's sum, of all warps; they have added theirs.
  __device__ __forceinline__ void hand_in() const {
    constexpr int kRows = kWarpSize / 4;  // numbers of a warp: see add_weight_sums
    float sum = 0.f;
#pragma unroll 1
    for (int i = lane_id(); i < at.warps * kRows; i += kWarpSize)
      sum += shared_at<float>(G::kWarps + i / kRows * G::kWarpBytes +
                              G::kWeightSums)[field * G::kDim + i % kRows];
    sum = sum_of_lanes(sum);
    if (lane_id() == 0) __stcg(handed_in + blockIdx.y, sum);
  }
  /// How many blocks have handed in theirs before.
  __device__ __forceinline__ unsigned draw() const {
    unsigned before = 0;
    if (lane_id() == 0)
      asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;\n"
                   : "=r"(before)
                   : "l"(ticket(at, field)), "r"(blocks - 1)
                   : "memory");
    return before;
  }
  __device__ __forceinline__ void finish(unsigned drawn) const {
    const SweepArgs& args = at.args;
    const bool near = field == G::kMaps;
    const WeightGradient& gradient = near ? args.near_gradient : args.far_gradient;
    if (__shfl_sync(~0u, drawn, 0) != unsigned(blocks - 1) || !gradient.data) return;
    __syncwarp();  // what lane 0 has acquired is there for all
    double sum = 0;
#pragma unroll 1
    for (int i = lane_id(); i < blocks; i += kWarpSize) sum += __ldcg(handed_in + i);
    sum = sum_of_lanes(sum);
    if (lane_id() == 0) store_weight(gradient, (near ? 0 : field * args.heads) + at.h, sum);
  }

 private:
  template <typename T>
  static __device__ __forceinline__ T sum_of_lanes(T sum) {
#pragma unroll
    for (int other = 1; other < kWarpSize; other *= 2) sum += __shfl_xor_sync(~0u, sum, other);
    return sum;
  }
};

}  // namespace fmmformer::cuda::whole
