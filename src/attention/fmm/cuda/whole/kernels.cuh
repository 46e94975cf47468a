// SPDX-License-Identifier: Apache-2.0
// Forward, and all of backward, as one kernel each.
#pragma once

#include "attention/fmm/cuda/whole/far_keys.cuh"
#include "attention/fmm/cuda/whole/weight_sums.cuh"

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

/// What both begin with: the warp's own keys and values are in shared memory, its other rows on
/// their way there; for weights and the band the first barrier must come. All blocks begin at the
/// same time, and memory brings first what is asked for first.
template <typename G>
__device__ __forceinline__ void begin(const Sequence<G>& at) {
  const uint32_t live = copy_keys(at);
  if (at.args.has_near) Band<G>::fill(at.args);
  load_weights(at);
  await_copies();
  copy_queries(at, live);
}

template <typename G>
__global__ void __launch_bounds__(kMostWarps* kWarpSize, G::kBlocksAtOnce)
    forward_kernel(const __grid_constant__ SweepArgs args) {
  Sequence<G> at(args);
  begin(at);
#pragma unroll 1
  for (; at.exists(); at.advance()) {
    const States<G> states(at);
    KeyFeatures<G> x;
    sum_before(at, states, x);
    copy_next(at);
    const Band<G> band(at);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      Blocks<G> out;
      clear(out);
      far_forward(at, states, x, tile, args.normalisers + at.row_index(G::kMaps, 0), out);
      if (args.has_near) near_forward(band, tile, args.log_sum_exp + at.row_index(1, 0), out);
      at.write(args.out, tile, out, at.offset(kQueries, tile));
    }
    await_copies();
  }
  if (args.chunk_states) clear_tickets(at);
}

/// The band's gradients of queries: dq is finished and written. Returns <dO, near field> of the
/// lane's rows.
template <typename G>
__device__ __forceinline__ float near_queries(const Sequence<G>& at, Blocks<G> (&dq)[kTiles],
                                              BandParts<G>& parts) {
  const Band<G> band(at);
  __syncwarp();  // all lanes have read the states, in whose place dq comes
  float by_weight = 0.f;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    by_weight += near_query(band, tile, dq[tile], parts);
    at.write(at.args.dq, tile, dq[tile], G::kStage - at.turn);
  }
  return by_weight;
}

/// ... of keys, with which dk and dv begin. A barrier must come between.
template <typename G>
__device__ __forceinline__ void near_keys(const Sequence<G>& at, const BandParts<G>& parts,
                                          Blocks<G> (&dk)[kTiles], Blocks<G> (&dv)[kTiles]) {
  using Parts = BandParts<G>;
  WeightSums<G> weight_sums;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    Blocks<G> value_sum;
    clear(dk[tile]), clear(dv[tile]), clear(value_sum);
    const auto add = [&](typename Parts::Slot slot, int queries) {
      near_key(at, parts.load(slot), queries, dk[tile], value_sum);
    };
    add(tile == 0 ? Parts::kFirstOwn : Parts::kSecondOwn, tile);
    if (tile == 0) add(Parts::kSecondFirst, 1);
    if (at.warp + 1 < at.warps) {
      if (tile == 1) add(Parts::kFirstBefore, 2);
      add(tile == 0 ? Parts::kFirstTwoBefore : Parts::kSecondBefore, 2 + tile);
    }
    add_values(at, G::kMaps, tile, value_sum, dv[tile], weight_sums);
  }
  if (WeightSums<G>::wanted(at.args)) weight_sums.store(at, G::kMaps);
}

template <typename G>
__global__ void __launch_bounds__(kMostWarps* kWarpSize, G::kBlocksAtOnce)
    backward_kernel(const __grid_constant__ SweepArgs args, const bool reduces) {
  Sequence<G> at(args);
  begin(at);
  clear_weight_sums(at);
#pragma unroll 1
  for (; at.exists(); at.advance()) {
    at.live_bits = at.live_word(at.warp);
    float by_weight[G::kFields] = {};
    Blocks<G> dq[kTiles], dk[kTiles], dv[kTiles];
    clear(dq[0]), clear(dq[1]);
    far_query(at, dq, by_weight);
    BandParts<G> parts(at);
    if (args.has_near) {
      by_weight[G::kMaps] = near_queries(at, dq, parts);
    } else {
      at.write(args.dq, 0, dq[0], G::kStage - at.turn);
      at.write(args.dq, 1, dq[1], G::kStage - at.turn);
    }
    add_weight_sums(at, by_weight);
    const States<G> states(at);
    Fragments<G> f[G::kMaps][kTiles];
    sum_queries(at, states, f);
    __syncthreads();
    if (args.has_near)
      near_keys(at, parts, dk, dv);
    else
      clear(dk[0]), clear(dk[1]), clear(dv[0]), clear(dv[1]);
    states.template scan<Scan::kAfter>(at.warps);
    copy_next(at);
    const WeightReduction<G> reduction(at, at.warp);
    const bool reduces_now = reduces && !at.has_next() && at.warp < G::kFields;
    unsigned drawn = 0;
    if (reduces_now) reduction.hand_in();
    WeightSums<G> weight_sums[G::kMaps];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      far_key(at, states, tile, f, dk[tile], dv[tile], weight_sums);
      // Before more is written, for which it would wait.
      if (reduces_now && tile + 1 == kTiles) drawn = reduction.draw();
      at.write(args.dk, tile, dk[tile], at.offset(kKeys, tile));
      at.write(args.dv, tile, dv[tile], at.offset(kValues, tile));
    }
#pragma unroll
    for (int l = 0; l < G::kMaps && WeightSums<G>::wanted(args); ++l) weight_sums[l].store(at, l);
    if (reduces_now) reduction.finish(drawn);
    await_copies();
  }
  if (args.weight_sums && !reduces) store_weight_sums<G>(args);
}

}  // namespace fmmformer::cuda::whole
