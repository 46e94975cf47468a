// SPDX-License-Identifier: Apache-2.0
// Sums over all tokens of a two-sided sequence, by the blocks of its segments: a cluster, or one
// block. Every block adds up what its warps have; of all blocks' sums, each adds up a share, by way
// of the others' shared memory, and hands it to all. Nothing goes through memory, and no launch
// comes between two walks.
#pragma once

#include "attention/fmm/cuda/cluster.cuh"
#include "attention/fmm/cuda/strips/sums.cuh"

namespace fmmformer::cuda::strips {

/// Eight neighbouring channels of a state's row, or of its key sums, as the registers of four
/// lanes: even channels in one float4, odd ones in the next.
struct Eight {
  float x[8];

  __device__ __forceinline__ void add(const float4& even, const float4& odd) {
    const float from[8] = {even.x, odd.x, even.y, odd.y, even.z, odd.z, even.w, odd.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] += from[i];
  }
  __device__ __forceinline__ void store(float* to) const {
    reinterpret_cast<float4*>(to)[0] = make_float4(x[0], x[1], x[2], x[3]);
    reinterpret_cast<float4*>(to)[1] = make_float4(x[4], x[5], x[6], x[7]);
  }
  __device__ __forceinline__ void store(__nv_bfloat16* to) const {
    *reinterpret_cast<uint4*>(to) = make_uint4(Bf16::pack(x[0], x[1]), Bf16::pack(x[2], x[3]),
                                               Bf16::pack(x[4], x[5]), Bf16::pack(x[6], x[7]));
  }
};

/// Which eight an index stands for: of all maps' rows, then of their key sums.
template <typename G>
struct EightPlace {
  static constexpr int kOfRows = G::kSums / 2 * 8, kOfKeySums = G::kDim / 8;
  static constexpr int kCount = G::kMaps * (kOfRows + kOfKeySums);
  int map, feature, value;  // the first feature channel; -1: key sums
  int source;  // in a slot of Exchange, in float4: the even ones; eight further the odd

  __device__ explicit EightPlace(int index) {
    constexpr int kOfMap = (G::kSums + G::kKeySums) * 8;
    const bool of_rows = index < G::kMaps * kOfRows;
    if (!of_rows) index -= G::kMaps * kOfRows;
    map = index / (of_rows ? kOfRows : kOfKeySums);
    const int in_map = index % (of_rows ? kOfRows : kOfKeySums);
    if (of_rows) {
      // Registers 2 r and the next: see Sums. g is the lanes'.
      const int g = in_map % 8, r = in_map / 8;
      value = r / 4 / G::kBlocks * kBlockDim + r % 2 * 8 + g;
      feature = r / 4 % G::kBlocks * kBlockDim + r / 2 % 2 * 8;
      source = map * kOfMap + r * 16 + g;
    } else {
      value = -1, feature = in_map * 8;
      source = map * kOfMap + (G::kSums + in_map * 2) * 8;
    }
  }
};

/// `states`, the sums over the warp's own strip, of all blocks together become `fixed` in each of
/// them; and an entry of args.made, where wanted. Barriers inside.
template <typename G>
__device__ void sum_over_cluster(FarStates<G, false>& states, const FixedSums<G>& fixed,
                                 const Layout& layout, const SweepArgs& args, const Strip& strip,
                                 bool writes) {
  const Exchange<G, false> exchange(layout);
  float4* slots = reinterpret_cast<float4*>(exchange.slots);
  __syncthreads();  // walks are over
  exchange.put(strip.index, states);
  __syncthreads();
  constexpr int kOfSlot = G::kState * kWarpSize / 4;
  for (int i = threadIdx.x; i < kOfSlot; i += blockDim.x) {
    float4 sum = slots[i];
    for (int slot = 1; slot < strip.count; ++slot) {
      const float4 x = slots[slot * kOfSlot + i];
      sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
    }
    slots[i] = sum;
  }
  meet_cluster();
  const int all = args.segments * blockDim.x;
  for (int i = strip.segment * blockDim.x + threadIdx.x; i < EightPlace<G>::kCount; i += all) {
    const EightPlace<G> place(i);
    Eight sum = {};
#pragma unroll 4
    for (int block = 0; block < args.segments; ++block) {
      const float4* from = shared_of_block(slots, block) + place.source;
      sum.add(from[0], from[8]);
    }
    const int64_t row = (int64_t(strip.pair) * args.made.maps + place.map) * G::kDim;
    if (place.value < 0) {
      float* to = fixed.key_sums.sums + place.map * G::kDim + place.feature;
      for (int block = 0; block < args.segments; ++block) sum.store(shared_of_block(to, block));
      if (writes) sum.store(args.made.key_sums + row + place.feature);
      continue;
    }
    ElemOf<G>* to = fixed.row(place.map, place.value, place.feature);
    for (int block = 0; block < args.segments; ++block) sum.store(shared_of_block(to, block));
#pragma unroll
    for (int j = 0; j < 8 && writes; ++j)
      args.made.sums[(row + place.feature + j) * args.made.row_length + place.value] = sum.x[j];
  }
  meet_cluster();
}

}  // namespace fmmformer::cuda::strips
