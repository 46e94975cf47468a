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

/// What both begin with: rows, weights and the band on their way to shared memory. The warp's own
/// keys and values are there; for all else the first barrier must come, see States::scan.
template <typename G>
__device__ __forceinline__ void begin(const Sequence<G>& at) {
  const SweepArgs& args = at.args;
  const uint32_t live = at.find_live();
  at.copy(kKeys, args.k, live), at.copy(kValues, args.v, live);
  commit_copies();
  at.copy(kQueries, args.q, live);
  if (G::kBackward) at.copy(kGradients, args.grad_out, live);
  commit_copies();
  load_weights(at);
  if (args.has_near) Band<G>::fill(args);
  wait_for_older_copies();
  __syncwarp();
}

template <typename G>
__global__ void __launch_bounds__(kMostWarps* kWarpSize, 3)
    forward_kernel(const __grid_constant__ SweepArgs args) {
  const Sequence<G> at(args);
  if (!at.exists()) return;
  begin(at);
  Blocks<G> out[kTiles];
  clear(out[0]), clear(out[1]);
  far_forward(at, args.normalisers + at.row_index(G::kMaps, 0), out);
  if (args.has_near) {
    const Band<G> band(at);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
      near_forward(band, tile, args.log_sum_exp + at.row_index(1, 0), out[tile]);
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
    at.write(args.out, tile, out[tile], at.offset(kQueries, tile));
}

/// The band's gradients: dq is finished and written; dk and dv begin. A barrier
/// inside.
template <typename G>
__device__ __forceinline__ float near_backward(const Sequence<G>& at,
                                               const RowNumbers<G> (&numbers)[kTiles],
                                               Blocks<G> (&dq)[kTiles], Blocks<G> (&dk)[kTiles],
                                               Blocks<G> (&dv)[kTiles]) {
  const Band<G> band(at);
  const BandParts<G> parts{at};
  __syncwarp();     // all lanes have read the states, in whose place they come
  BandPart own[3];  // of (query tile, key tile) (0, 0), (1, 1), (1, 0)
  float by_weight = near_query(band, 0, numbers[0], dq[0], [&](int group, const BandPart& part) {
    if (group < 2) parts.store(group, part);
    if (group == 2) own[0] = part;
  });
  at.write(at.args.dq, 0, dq[0], G::kStage);
  by_weight += near_query(band, 1, numbers[1], dq[1], [&](int group, const BandPart& part) {
    if (group == 0) parts.store(2, part);
    if (group == 1) own[2] = part;
    if (group == 2) own[1] = part;
  });
  at.write(at.args.dq, 1, dq[1], G::kStage);
  __syncthreads();
  WeightSums<G> weight_sums;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    Blocks<G> value_sum;
    clear(dk[tile]), clear(dv[tile]), clear(value_sum);
    near_key(at, own[tile], tile, dk[tile], value_sum);
    if (tile == 0) near_key(at, own[2], 1, dk[tile], value_sum);
    if (at.warp + 1 < at.warps) {
      if (tile == 1) near_key(at, parts.load(1), 2, dk[tile], value_sum);
      near_key(at, parts.load(tile == 0 ? 0 : 2), 2 + tile, dk[tile], value_sum);
    }
    add_values(at, G::kMaps, tile, value_sum, dv[tile], weight_sums);
  }
  if (WeightSums<G>::wanted(at.args)) weight_sums.store(at, G::kMaps);
  return by_weight;
}

/// The block's row of args.weight_sums, from what every warp left of each channel. A barrier
/// inside.
template <typename G>
__device__ void store_weight_sums(const Sequence<G>& at, const float (&by_weight)[G::kFields]) {
  const SweepArgs& args = at.args;
  const bool uniform = strips::uniform_weights<G>(args);
#pragma unroll
  for (int field = 0; field < G::kFields && uniform; ++field) {
    float sum = by_weight[field];  // equal in the lanes of a quad
#pragma unroll
    for (int other = 4; other < kWarpSize; other *= 2) sum += __shfl_xor_sync(~0u, sum, other);
    if (lane_id() == 0) at.template own<float>(G::kWeightSums)[field * G::kDim] = sum;
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

template <typename G>
__global__ void __launch_bounds__(kMostWarps* kWarpSize, 2)
    backward_kernel(const __grid_constant__ SweepArgs args) {
  const Sequence<G> at(args);
  if (!at.exists()) return;
  RowNumbers<G> numbers[kTiles];
  at.load_numbers(0, numbers[0]), at.load_numbers(1, numbers[1]);
  begin(at);
  float by_weight[G::kFields] = {};
  Blocks<G> dq[kTiles], dk[kTiles], dv[kTiles];
  clear(dq[0]), clear(dq[1]);
  far_query(at, numbers, dq, by_weight);
  if (args.has_near) {
    by_weight[G::kMaps] = near_backward(at, numbers, dq, dk, dv);
  } else {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      at.write(args.dq, tile, dq[tile], G::kStage);
      clear(dk[tile]), clear(dv[tile]);
    }
  }
  __syncthreads();  // nobody reads what the band has left, in whose place states come
  far_key(at, dk, dv);
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    at.write(args.dk, tile, dk[tile], at.offset(kKeys, tile));
    at.write(args.dv, tile, dv[tile], at.offset(kValues, tile));
  }
  if (args.weight_sums) store_weight_sums(at, by_weight);
}

}  // namespace fmmformer::cuda::whole
