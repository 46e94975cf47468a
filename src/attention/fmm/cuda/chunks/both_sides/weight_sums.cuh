// SPDX-License-Identifier: Apache-2.0
// Gradients of blend weights: the sums that a block made. Where every head has weights of its own,
// blocks hand them in and draw a ticket, and who draws a head's last one adds up those of all its
// blocks, in their order; else they go to args.weight_sums for a launch of its own.
#pragma once

#include "attention/fmm/cuda/chunks/both_sides/shape.cuh"
#include "attention/fmm/cuda/weight_gradients.cuh"

namespace fmmformer::cuda::chunks::both_sides {

/// One field's gradient of blend weights, from a sum of rows g and g + 8 a lane.
template <typename G>
__device__ __forceinline__ void put_weight_sum(float sum, int tile, int field) {
#pragma unroll
  for (int other = 4; other < kWarpSize; other *= 2) sum += __shfl_xor_sync(~0u, sum, other);
  if (lane_id() == 0) shared_at<float>(Memory<G>::kWeightSums)[tile * G::kFields + field] = sum;
}
template <typename G>
__device__ __forceinline__ float block_weight_sum(int field) {
  const float* all = shared_at<float>(Memory<G>::kWeightSums) + field;
  float sum = 0.f;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) sum += all[tile * G::kFields];
  return sum;
}
/// Into the first channel's place in args.weight_sums; the others become zeros.
template <typename G>
__device__ __forceinline__ void store_weight_sums(const SweepArgs& args, int own) {
  const int dim = channels<G>(args.head_dim);
#pragma unroll 1
  for (int i = own; i < G::kFields * dim; i += Groups<G>::kThreads) {
    const int field = i / dim, channel = i % dim;
    if (field == G::kMaps && !args.has_near) continue;
    args.weight_sums[(blockIdx.x * int64_t(G::kFields) + field) * dim + channel] =
        channel == 0 ? block_weight_sum<G>(field) : 0.f;
  }
}

/// Behind what forward keeps of chunks, unsigned [fields][heads]: zero before and after.
template <typename G>
__device__ __forceinline__ unsigned* ticket(const SweepArgs& args, int head, int field) {
  const int64_t chunks = (args.length + kChunk - 1) / kChunk;
  const int64_t entries = args.batch * args.heads * chunks;
  return reinterpret_cast<unsigned*>(args.chunk_states +
                                     entries * entry_bytes(G::kMaps, G::kDrops)) +
         field * args.heads + head;
}
/// A warp has a field; other work may come between the two steps.
template <typename G>
struct WeightReduction {
  const SweepArgs& args;
  int field, head, block, blocks;  // blocks: of a head
  float* handed_in;                // [blocks], of [fields][heads]

  __device__ WeightReduction(const SweepArgs& args, int field) : args(args), field(field) {
    const unsigned segments = args.segments, heads = args.heads, pair = blockIdx.x / segments;
    head = pair % heads, block = pair / heads * segments + blockIdx.x % segments;
    blocks = static_cast<int>(args.batch) * args.segments;
    handed_in = args.weight_sums + (field * args.heads + head) * blocks;
  }
  /// Returns how many blocks have handed in theirs before, to lane 0.
  __device__ __forceinline__ unsigned hand_in() const {
    unsigned before = 0;
    if (lane_id() != 0) return before;
    __stcg(handed_in + block, block_weight_sum<G>(field));
    asm volatile("atom.release.gpu.global.inc.u32 %0, [%1], %2;\n"
                 : "=r"(before)
                 : "l"(ticket<G>(args, head, field)), "r"(blocks - 1)
                 : "memory");
    return before;
  }
  __device__ __forceinline__ void finish(unsigned drawn) const {
    const bool near = field == G::kMaps;
    const WeightGradient& gradient = near ? args.near_gradient : args.far_gradient;
    if (__shfl_sync(~0u, drawn, 0) != unsigned(blocks - 1) || !gradient.data) return;
    __threadfence();  // acquires what the others have handed in
    double sum = 0;
#pragma unroll 1
    for (int i = lane_id(); i < blocks; i += kWarpSize) sum += __ldcg(handed_in + i);
#pragma unroll
    for (int other = 1; other < kWarpSize; other *= 2) sum += __shfl_xor_sync(~0u, sum, other);
    if (lane_id() == 0) store_weight(gradient, (near ? 0 : field * args.heads) + head, sum);
  }
};

}  // namespace fmmformer::cuda::chunks::both_sides
