// SPDX-License-Identifier: Apache-2.0
// The sweeps as kernels: a thread block walks its segment's chunks.
//
// Before a chunk's products all threads, or the feeders, measure its rows, split them and make
// their features; then every warp works on its own rows, and when all have, adds the chunk to its
// part of the state.
#pragma once

#include "attention/fmm/cuda/chunks_fp32/far.cuh"
#include "attention/fmm/cuda/chunks_fp32/feeder.cuh"

namespace fmmformer::cuda::chunks_fp32 {

template <typename G, bool kOfQueries>
__global__ void __launch_bounds__(kThreads, 1) sum_kernel(const __grid_constant__ SweepArgs args) {
  constexpr Sweep kSweep = kOfQueries ? Sweep::kSumOfQueries : Sweep::kSumOfKeys;
  Place<G> place(args);
  if (is_of_no_use(args, place.segment, kOfQueries)) return;
  const Loader<G> load;
  const Weights<G> weights(args, place.h);
  State<G, kSweep> state(place);
  Walk<G, kSweep> walk(args, place);
  ChunkShare<G, kSweep> share;
  run_ahead(
      walk, [&] { state.begin(args, walk); }, [&] { measure_chunk(share, walk, weights); },
      [&] { split_chunk(share, walk); }, [&] { state.add(walk, load); });
  state.store(args, blockIdx.x);
}

/// Walks a segment's chunks with a state; body() has a chunk's rows and features as pairs.
template <typename G, Sweep kSweep, typename Body>
__device__ __forceinline__ void walk_with_state(Walk<G, kSweep>& walk, State<G, kSweep>& state,
                                                const Weights<G>& weights, const Loader<G>& load,
                                                const Body& body) {
  const auto measured_body = [&] {
    state.clear_maxima();
    body();
  };
  if constexpr (G::kFed) {
    const auto shift = [&] {
      const bool first = shift_halo(walk, 0, walk.shift(kBandRows)),
                 second = shift_halo(walk, 1, walk.shift(kBandRows + 1));
      if (first || second) walk.place.meet_walkers();
    };
    const auto first = [&] {
      OwnRows<G, kSweep> own;
      own.load(walk);
      state.begin(walk.args, walk);
      walk.place.meet_walkers();
      own.store(walk);
    };
    return run_fed(
        walk, first, [&] { state.show(walk); }, shift, measured_body,
        [&] { state.add(walk, load); });
  }
  const auto begin_own_rows = [&](int chunk, uint64_t live) {
#pragma unroll
    for (int which = 0; which < Memory<G, kSweep>::kOwnTensors; ++which)
      walk.begin_own(which, walk.own_view(which), chunk, live);
    if constexpr (kSweep == Sweep::kQueries) walk.begin_own_numbers(chunk);
  };
  ChunkShare<G, kSweep> share;
  run(
      walk, begin_own_rows, [&] { state.begin(walk.args, walk); }, [&] { split_halo(walk); },
      [&] { measure_chunk(share, walk, weights); },
      [&] { split_chunk(share, walk), state.show(walk); }, measured_body,
      [&] { state.add(walk, load); });
}

template <typename G>
__device__ __forceinline__ void walk_forward(const SweepArgs& args, Place<G>& place) {
  constexpr Sweep kSweep = Sweep::kForward;
  Loader<G> load;
  const Weights<G> weights(args, place.h);
  State<G, kSweep> state(place);
  const Band<kSweep> band(args);
  Walk<G, kSweep> walk(args, place);
  const auto body = [&] {
    load.forget();
    Block a[G::kGroups], out[kSliceBlocks];
    clear(a), clear(out);
    if (args.has_near) near_forward<G>(a, walk, band, load, weights.of[G::kMaps]);
#pragma unroll 1
    for (int l = 0; l < G::kMaps; ++l) far_forward<G>(a, out, l, walk, load, pick(weights.of, l));
    add_groups(out, a, largest_score(walk, weights), walk, band, load);
    write_rows(walk, args.out, out);
  };
  walk_with_state(walk, state, weights, load, body);
  if (!args.made.sums || place.segment != args.segments - 1) return;
  if constexpr (G::kFed) place.meet_walkers();  // else a walk ends with a barrier
  state.store(args, place.pair);
}

/// Gradients of blend weights, from a sum of rows g and g + 8 a lane and field, into the first
/// channel's place in args.weight_sums: a weight is one number a head. A barrier inside.
template <typename G>
__device__ void store_weight_sums(const float (&by_field)[G::kFields], const SweepArgs& args,
                                  const Place<G>& place) {
  float* all = shared_at(Memory<G, Sweep::kQueries>::kExchange);  // [tiles][fields]
#pragma unroll
  for (int field = 0; field < G::kFields; ++field) {
    float sum = by_field[field];
#pragma unroll
    for (int other = 4; other < kWarpSize; other *= 2) sum += __shfl_xor_sync(~0u, sum, other);
    if (lane_id() == 0 && place.slice == 0) all[place.tile * G::kFields + field] = sum;
  }
  place.meet_walkers();
  const int field = threadIdx.x;
  const bool near = field == G::kMaps;
  if (field >= G::kFields || (near && !args.has_near)) return;
  float sum = 0.f;
  for (int tile = 0; tile < G::kTiles; ++tile) sum += all[tile * G::kFields + field];
  const int64_t row =
      blockIdx.x * int64_t(args.all_maps + 1) + (near ? args.all_maps : args.first_map + field);
  args.weight_sums[row * args.all_channels] = sum;
}

template <typename G>
__device__ __forceinline__ void walk_queries(const SweepArgs& args, Place<G>& place) {
  constexpr Sweep kSweep = Sweep::kQueries;
  Loader<G> load;
  const Weights<G> weights(args, place.h);
  State<G, kSweep> state(place);
  const Band<kSweep> band(args);
  Walk<G, kSweep> walk(args, place);
  float by_weight[G::kFields];
#pragma unroll
  for (int field = 0; field < G::kFields; ++field) by_weight[field] = 0.f;
  const auto body = [&] {
    load.forget();
    Block g[G::kGroups], dq[kSliceBlocks];
    multiply_raw_groups(g, 1, 1, walk, max(band.groups, far_groups(walk)), load);
    clear(dq);
    if (args.has_near)
      by_weight[G::kMaps] += near_query<G>(dq, g, walk, band, load, weights.of[G::kMaps]);
#pragma unroll 1
    for (int l = 0; l < G::kMaps; ++l) {
      const float of_map = far_query<G>(dq, g, l, walk, load, pick(weights.of, l));
#pragma unroll
      for (int i = 0; i < G::kMaps; ++i) by_weight[i] += i == l ? of_map : 0.f;
    }
    write_rows(walk, args.dq, dq);
  };
  walk_with_state(walk, state, weights, load, body);
  if (args.weight_sums) store_weight_sums<G>(by_weight, args, place);
}

template <typename G>
__device__ __forceinline__ void walk_keys(const SweepArgs& args, Place<G>& place) {
  constexpr Sweep kSweep = Sweep::kKeys;
  Loader<G> load;
  const Weights<G> weights(args, place.h);
  State<G, kSweep> state(place);
  const Band<kSweep> band(args);
  Walk<G, kSweep> walk(args, place);
  const auto body = [&] {
    load.forget();
    const int groups = max(band.groups, far_groups(walk));
    Block a[G::kGroups];  // scores that dv needs; the near field's come with dk
    clear(a);
    {
      Block g[G::kGroups], dk[kSliceBlocks];
      multiply_raw_groups(g, 1, 1, walk, groups, load);
      clear(dk);
      if (args.has_near) near_key<G>(dk, a, g, walk, band, load, weights.of[G::kMaps]);
#pragma unroll 1
      for (int l = 0; l < G::kMaps; ++l) far_key<G>(dk, g, l, walk, load);
      write_rows(walk, args.dk, dk);
    }
    Block dv[kSliceBlocks];
    clear(dv);
#pragma unroll 1
    for (int l = 0; l < G::kMaps; ++l) far_values<G>(a, dv, l, walk, load);
    add_groups(dv, a, largest_score(walk, weights), walk, band, load);
    write_rows(walk, args.dv, dv);
  };
  walk_with_state(walk, state, weights, load, body);
}

/// Of a block, walkers alone, or walkers and those who feed them.
template <typename G, Sweep kSweep, typename Walkers>
__device__ __forceinline__ void divide_block(const SweepArgs& args, const Walkers& walk) {
  Place<G> place(args);
  if constexpr (!G::kFed) {
    walk(place);
  } else {
    Scaling<Memory<G, kSweep>>::clear();
    __syncthreads();
    if (threadIdx.x >= kThreads) {
      leave_registers<kRegistersOfFeeder>();
      Feeder<G, kSweep>(args, place).feed();
    } else {
      take_registers<kRegistersOfWalker>();
      walk(place);
    }
  }
}

template <typename G>
__global__ void __launch_bounds__(G::kBlockThreads, 1)
    forward_kernel(const __grid_constant__ SweepArgs args) {
  divide_block<G, Sweep::kForward>(args, [&](Place<G>& place) { walk_forward<G>(args, place); });
}
template <typename G>
__global__ void __launch_bounds__(G::kBlockThreads, 1)
    query_kernel(const __grid_constant__ SweepArgs args) {
  divide_block<G, Sweep::kQueries>(args, [&](Place<G>& place) { walk_queries<G>(args, place); });
}
template <typename G>
__global__ void __launch_bounds__(G::kBlockThreads, 1)
    key_kernel(const __grid_constant__ SweepArgs args) {
  divide_block<G, Sweep::kKeys>(args, [&](Place<G>& place) { walk_keys<G>(args, place); });
}

}  // namespace fmmformer::cuda::chunks_fp32
