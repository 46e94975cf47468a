// SPDX-License-Identifier: Apache-2.0
// The sweeps as kernels: a thread block walks its segment's chunks.
//
// Before a chunk's products all threads measure its rows, split them and make their features; then
// every warp works on its own rows, and when all have, adds the chunk to its part of the state.
#pragma once

#include "attention/fmm/cuda/chunks_fp32/far.cuh"

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
  walk.run_ahead([&] { state.begin(args, walk); }, [&] { measure_chunk(share, walk, weights); },
                 [&] { split_chunk(share, walk); }, [&] { state.add(walk, load); });
  state.store(args, blockIdx.x);
}

/// Walks a segment's chunks with a state; body() has a chunk's rows and features as pairs.
template <typename G, Sweep kSweep, typename BeginOwnRows, typename Body>
__device__ __forceinline__ void walk_with_state(Walk<G, kSweep>& walk, State<G, kSweep>& state,
                                                const Weights<G>& weights, const Loader<G>& load,
                                                const BeginOwnRows& begin_own_rows,
                                                const Body& body) {
  ChunkShare<G, kSweep> share;
  walk.run(
      begin_own_rows, [&] { state.begin(walk.args, walk); }, [&] { split_halo(walk); },
      [&] { measure_chunk(share, walk, weights); }, [&] { split_chunk(share, walk); }, body,
      [&] { state.add(walk, load); });
}

template <typename G>
__global__ void __launch_bounds__(kThreads, 1)
    forward_kernel(const __grid_constant__ SweepArgs args) {
  constexpr Sweep kSweep = Sweep::kForward;
  Place<G> place(args);
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
    write_rows(walk, args.out, args.partial_out, out);
  };
  walk_with_state(
      walk, state, weights, load,
      [&](int chunk, uint64_t live) { walk.begin_own(0, args.q, chunk, live); }, body);
  if (args.made.sums && place.segment == args.segments - 1) state.store(args, place.pair);
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
  __syncthreads();
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
__global__ void __launch_bounds__(kThreads, 1)
    query_kernel(const __grid_constant__ SweepArgs args) {
  constexpr Sweep kSweep = Sweep::kQueries;
  Place<G> place(args);
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
    write_rows(walk, args.dq, args.partial_dq, dq);
  };
  const auto begin_own_rows = [&](int chunk, uint64_t live) {
    walk.begin_own(0, args.q, chunk, live), walk.begin_own(1, args.grad_out, chunk, live);
    walk.begin_own_numbers(chunk);
  };
  walk_with_state(walk, state, weights, load, begin_own_rows, body);
  if (args.weight_sums) store_weight_sums<G>(by_weight, args, place);
}

template <typename G>
__global__ void __launch_bounds__(kThreads, 1) key_kernel(const __grid_constant__ SweepArgs args) {
  constexpr Sweep kSweep = Sweep::kKeys;
  Place<G> place(args);
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
      write_rows(walk, args.dk, args.partial_dk, dk);
    }
    Block dv[kSliceBlocks];
    clear(dv);
#pragma unroll 1
    for (int l = 0; l < G::kMaps; ++l) far_values<G>(a, dv, l, walk, load);
    add_groups(dv, a, largest_score(walk, weights), walk, band, load);
    write_rows(walk, args.dv, args.partial_dv, dv);
  };
  const auto begin_own_rows = [&](int chunk, uint64_t live) {
    walk.begin_own(0, args.k, chunk, live), walk.begin_own(1, args.v, chunk, live);
  };
  walk_with_state(walk, state, weights, load, begin_own_rows, body);
}

}  // namespace fmmformer::cuda::chunks_fp32
