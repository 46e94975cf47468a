// SPDX-License-Identifier: Apache-2.0
// Forward, and all of backward, as one kernel each.
#pragma once

#include "attention/fmm/cuda/whole/far_keys.cuh"

namespace fmmformer::cuda::whole {

/// As Weights::load.
template <typename G>
__device__ __forceinline__ void load_weights(const Sequence<G>& at) {
  const Weights<G> weights = at.weights();
  for (int i = threadIdx.x; i < G::kFields * G::kDim; i += blockDim.x) {
    const int field = i / G::kDim, channel = i % G::kDim;
    const float x = field == G::kMaps ? weight_value(at.args.near_weight, 0, at.h, channel)
                                      : weight_value(at.args.far_weight, field, at.h, channel);
    const_cast<float*>(weights.all)[i] = x;
    weights.operands()[i] = typename G::Elem(x);
  }
}

/// What both begin with: rows, weights and the band on their way to shared memory.
template <typename G>
__device__ __forceinline__ void begin(Sequence<G>& at) {
  const SweepArgs& args = at.args;
#pragma unroll 1
  for (int round = 0; round < at.rounds; ++round) {
    at.go_to(round);
    const uint32_t live = at.find_live();
    at.copy(kQueries, args.q, live), at.copy(kKeys, args.k, live), at.copy(kValues, args.v, live);
    if (G::kBackward) at.copy(kGradients, args.grad_out, live);
  }
  load_weights(at);
  if (args.has_near) Band<G>::fill(args);
  wait_for_copies();
  __syncthreads();
}

/// The state after the last token goes to args.made, from `sums`, [maps][kStateSize].
template <typename G>
__device__ void store_made(const Sequence<G>& at, const float* sums) {
  const cuda::States& made = at.args.made;
  for (int i = threadIdx.x; i < G::kMaps * G::kStateSize; i += blockDim.x) {
    const int map = at.args.first_map + i / G::kStateSize, in_map = i % G::kStateSize;
    const int64_t entry = (int64_t(at.pair) * made.maps + map) * G::kDim;
    const int element = in_map % 4, lane = in_map / 4 % kWarpSize, half = in_map / 128 % 2,
              block = in_map / 256;
    const int value = block / G::kBlocks * kBlockDim + lane / 4 + element / 2 * 8,
              feature = block % G::kBlocks * kBlockDim + half * 8 + lane % 4 * 2 + element % 2;
    if (in_map >= G::kImage)
      made.key_sums[entry + in_map - G::kImage] = sums[i];
    else
      made.sums[(entry + feature) * made.row_length + value] = sums[i];
  }
}

template <typename G>
__global__ void __launch_bounds__(G::kMostWarps* kWarpSize, blocks_at_once(G::kDim, false))
    forward_kernel(const __grid_constant__ SweepArgs args, int rounds) {
  Sequence<G> at(args, rounds);
  if (!at.exists()) return;
  begin(at);
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) {
    at.go_to(round);
    Blocks<G> out;
    clear(out);
    if (args.has_near) near_forward(Band<G>(at), args.log_sum_exp + at.row_index(1, 0), out);
    each_map_group<G>([&](auto group) {
      far_forward(at, group, at.carry(0), args.normalisers + at.row_index(G::kMaps, 0), out);
    });
    at.write(args.out, out);
  }
  if (args.made.sums) store_made(at, at.carry(0));
}

/// The band's gradients: dq is finished and written; dk and dv begin. A barrier inside.
template <typename G>
__device__ __forceinline__ void near_backward(const Sequence<G>& at, const RowNumbers<G>& numbers,
                                              Blocks<G>& dq, Blocks<G>& dk, Blocks<G>& dv,
                                              float& weight_sum) {
  const BandParts<G> parts{at};
  BandPart own;
  const float by_weight = near_query(Band<G>(at), numbers, dq, [&](int group, const BandPart& part) {
    if (group < 2) parts.store(group, part);
    if (group == 2) own = part;
  });
  if (strips::uniform_weights<G>(at.args)) weight_sum += by_weight;
  at.write(at.args.dq, dq);
  __syncthreads();
  Blocks<G> value_sum;
  clear(value_sum);
  near_key(at, own, 0, dk, value_sum);
#pragma unroll
  for (int further = 1; further <= 2; ++further) {
    if (parts.exists(further)) near_key(at, parts.load(further), further, dk, value_sum);
  }
  add_values(at, G::kMaps, value_sum, dv, weight_sum);
}

/// The block's row of args.weight_sums: of weights that are equal for all channels from sums over
/// the lanes' rows, else from those of the lanes' channels. Barriers inside.
template <typename G>
__device__ void store_weight_sums(const Sequence<G>& at, float (&sums)[G::kFields]) {
  const SweepArgs& args = at.args;
  const bool uniform = strips::uniform_weights<G>(args);
  __syncthreads();  // nobody reads what is in their place
#pragma unroll
  for (int field = 0; field < G::kFields; ++field) {
    float* to = at.template own<float>(G::kWeightSums) + field * G::kDim;
    if (!uniform) to[WeightSums<G>::channel()] = sums[field];
#pragma unroll
    for (int other = 4; other < kWarpSize && uniform; other *= 2)
      sums[field] += __shfl_xor_sync(~0u, sums[field], other);  // equal in the lanes of a quad
    if (uniform && lane_id() == 0) to[0] = sums[field];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < G::kFields * G::kDim; i += blockDim.x) {
    const int field = i / G::kDim, channel = i % G::kDim;
    if (field == G::kMaps && !args.has_near) continue;
    float sum = 0.f;
    for (int warp = 0; warp < at.warps && (!uniform || channel == 0); ++warp)
      sum += shared_at<float>(G::kWarps + warp * G::kWarpBytes + G::kWeightSums)[i];
    args.weight_sums[(at.pair * int64_t(args.all_maps + 1) + field) * args.all_channels + channel] =
        sum;
  }
}

/// Rounds go from the last to the first, queries and keys in each: the keys' side needs the dots of
/// all later queries. So the keys of earlier rounds are summed before.
template <typename G>
__global__ void __launch_bounds__(G::kMostWarps* kWarpSize, blocks_at_once(G::kDim, true))
    backward_kernel(const __grid_constant__ SweepArgs args, int rounds) {
  Sequence<G> at(args, rounds);
  if (!at.exists()) return;
  begin(at);
#pragma unroll 1
  for (int round = 0; round + 1 < rounds; ++round) {
    at.go_to(round);
    const float* start = round > 0 ? at.carry(round - 1) : nullptr;
    each_map_group<G>([&](auto group) {
      const States<G> states(at);
      constexpr int kFirst = decltype(group)::first * G::kStateSize;
      sum_keys<true>(at, states, group, [](auto, const auto&, const auto&) {});
      states.template scan<Scan::kBefore, decltype(group)::count>(
          at.warps, start ? start + kFirst : nullptr, at.carry(round) + kFirst);
    });
  }
  float weight_sums[G::kFields] = {};
#pragma unroll 1
  for (int round = rounds - 1; round >= 0; --round) {
    at.go_to(round);
    RowNumbers<G> numbers;
    at.load_numbers(numbers);
    // Of the states that rounds begin with, the last round's are read first and then make room.
    const float* before = round > 0 ? at.carry(round - 1) : nullptr;
    float* after = rounds > 1 ? at.carry(rounds - 2) : nullptr;
    Blocks<G> dq, dk, dv;
    clear(dq);
    each_map_group<G>([&](auto group) { far_query(at, group, before, numbers, dq, weight_sums); });
    clear(dk), clear(dv);
    if (args.has_near)
      near_backward(at, numbers, dq, dk, dv, weight_sums[G::kMaps]);
    else
      at.write(args.dq, dq);
    __syncthreads();  // nobody reads what the band has left, in whose place states come
    each_map_group<G>([&](auto group) {
      far_key(at, group, round + 1 < rounds ? after : nullptr, round > 0 ? after : nullptr, dk, dv,
              weight_sums);
    });
    at.write(args.dk, dk), at.write(args.dv, dv);
  }
  if (args.weight_sums) store_weight_sums(at, weight_sums);
}

}  // namespace fmmformer::cuda::whole
