// SPDX-License-Identifier: Apache-2.0
// The sweeps as kernels: a thread block walks its segment's chunks.
//
// Before a chunk's products all threads make its feature rows and put down the state before it;
// then every warp works on its own rows and adds the chunk to its part of the state.
#pragma once

#include "attention/fmm/cuda/chunks/far.cuh"

namespace fmmformer::cuda::chunks {

template <typename G>
constexpr int kBlocksAtOnce = PassShape<G::kDim>::kAtOnce;

template <typename G, bool kOfQueries>
__global__ void __launch_bounds__(G::kThreads, kBlocksAtOnce<G>)
    sum_kernel(const __grid_constant__ SweepArgs args) {
  constexpr Sweep kSweep = kOfQueries ? Sweep::kSumOfQueries : Sweep::kSumOfKeys;
  const Place<G> place(args);
  const Loader<G> load;
  const Weights<G> weights(args, place.h);
  Walk<G, kSweep> walk(args, place);
  State<G> state;
  state.clear();
  walk.run([](int, uint64_t) {}, [&] { make_features(walk, weights); },
           [&] { state.add(walk, load); });
  state.store(args, blockIdx.x, place.warp);
}

template <typename G>
__global__ void __launch_bounds__(G::kThreads, kBlocksAtOnce<G>)
    forward_kernel(const __grid_constant__ SweepArgs args) {
  constexpr Sweep kSweep = Sweep::kForward;
  const Place<G> place(args);
  const Loader<G> load;
  const Weights<G> weights(args, place.h);
  const Band<G, kSweep> band(args);
  Walk<G, kSweep> walk(args, place);
  State<G> state;
  state.begin(args, place);
  const auto prepare = [&] {
    make_features(walk, weights);
    state.template publish<kSweep>(place.warp);
    KeySumOperands<G>::store(Memory<G, kSweep>::kKeySums, state, place.warp);
  };
  const auto body = [&] {
    Block a[kTiles];
    clear(a);
    if (args.has_near) near_forward<G>(a, walk, band, load, weights.of[G::kMaps]);
    float factor[G::kMaps][2];
    each_map<G>([&](auto map) {
      constexpr int kMap = decltype(map)::value;
      add_scores<G, kMap>(a, factor[kMap], walk, band, load, weights.of[kMap]);
    });
    Block out[kSliceBlocks];
    clear(out);
    each_group<Reach::kBoth>(walk, band, [&](int k, int tile) {
      add_columns<G>(out, rounded(a[k]), load, walk.tile(1, tile), place.slice);
    });
    each_map<G>([&](auto map) {
      constexpr int kMap = decltype(map)::value;
      add_state_values<G, kMap>(out, factor[kMap], walk, load);
    });
    write_rows(walk, args.out, out, /*stage=*/0);
    state.add(walk, load);
  };
  walk.run([&](int chunk, uint64_t live) { walk.begin_own(0, args.q, chunk, live); }, prepare,
           body);
  if (args.made.sums && place.segment == args.segments - 1)
    state.store(args, place.pair, place.warp);
}

/// Gradients of blend weights, from a sum of rows g and g + 8 a lane and field, into the first
/// channel's place in args.weight_sums; the others become zeros. Barriers inside.
template <typename G>
__device__ void store_weight_sums(const float (&by_field)[G::kFields], const SweepArgs& args,
                                  const Place<G>& place) {
  float* all = shared_at<float>(Memory<G, Sweep::kQueries>::kExchange);  // [tiles][fields]
#pragma unroll
  for (int field = 0; field < G::kFields; ++field) {
    float sum = by_field[field];
#pragma unroll
    for (int other = 4; other < kWarpSize; other *= 2) sum += __shfl_xor_sync(~0u, sum, other);
    if (lane_id() == 0 && place.slice == 0) all[place.tile * G::kFields + field] = sum;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < G::kFields * G::kDim; i += G::kThreads) {
    const int field = i / G::kDim, channel = i % G::kDim;
    if (field == G::kMaps && !args.has_near) continue;
    float sum = 0.f;
    for (int tile = 0; channel == 0 && tile < kTiles; ++tile)
      sum += all[tile * G::kFields + field];
    args.weight_sums[(blockIdx.x * int64_t(G::kFields) + field) * G::kDim + channel] = sum;
  }
}

template <typename G>
__global__ void __launch_bounds__(G::kThreads, kBlocksAtOnce<G>)
    query_kernel(const __grid_constant__ SweepArgs args) {
  constexpr Sweep kSweep = Sweep::kQueries;
  const Place<G> place(args);
  const Loader<G> load;
  const Weights<G> weights(args, place.h);
  const Band<G, kSweep> band(args);
  Walk<G, kSweep> walk(args, place);
  State<G> state;
  state.begin(args, place);
  float by_weight[G::kFields];
#pragma unroll
  for (int field = 0; field < G::kFields; ++field) by_weight[field] = 0.f;
  float* row_dots = args.row_dots + place.row_index(args, G::kFields, 0);
  const auto prepare = [&] {
    make_features(walk, weights);
    state.template publish<kSweep>(place.warp);
  };
  const auto body = [&] {
    const QueryNumbers<G> numbers(walk);
    Block g[kTiles], dq[kSliceBlocks];
    {
      Fragment grad[G::kBlocks];
      load_rows<G>(grad, load, walk.own_tile(1));
      each_group<Reach::kBoth>(walk, band, [&](int k, int tile) {
        multiply_columns<G>(g[k], grad, load, walk.tile(1, tile));
      });
    }
    clear(dq);
    if (args.has_near) {
      by_weight[G::kMaps] +=
          near_query<G>(dq, g, walk, band, load, numbers.log_sum_exp, weights.of[G::kMaps],
                        row_dots + int64_t(G::kMaps) * args.length);
    }
    each_map<G>([&](auto map) {
      constexpr int kMap = decltype(map)::value;
      by_weight[kMap] += far_query<G, kMap>(dq, g, walk, band, load, numbers, weights.of[kMap],
                                            row_dots + int64_t(kMap) * args.length);
    });
    write_rows(walk, args.dq, dq, /*stage=*/0);
    state.add(walk, load);
  };
  const auto begin_own_rows = [&](int chunk, uint64_t live) {
    walk.begin_own(0, args.q, chunk, live), walk.begin_own(1, args.grad_out, chunk, live);
  };
  walk.run(begin_own_rows, prepare, body);
  if (args.weight_sums) store_weight_sums<G>(by_weight, args, place);
}

template <typename G>
__global__ void __launch_bounds__(G::kThreads, kBlocksAtOnce<G>)
    key_kernel(const __grid_constant__ SweepArgs args) {
  constexpr Sweep kSweep = Sweep::kKeys;
  const Place<G> place(args);
  const Loader<G> load;
  const Weights<G> weights(args, place.h);
  const Band<G, kSweep> band(args);
  Walk<G, kSweep> walk(args, place);
  State<G> state;
  state.begin(args, place);
  const auto prepare = [&] {
    make_features(walk, weights);
    state.template publish<kSweep>(place.warp);
  };
  const auto gradient_of_keys = [&] {
    Block g[kTiles], dk[kSliceBlocks];
    {
      Fragment v[G::kBlocks];
      load_rows<G>(v, load, walk.own_tile(1));
      each_group<Reach::kBoth>(walk, band, [&](int k, int tile) {
        multiply_columns<G>(g[k], v, load, walk.tile(1, tile));
      });
    }
    clear(dk);
    if (args.has_near) near_key<G>(dk, g, walk, band, load, weights.of[G::kMaps]);
    each_map<G>([&](auto map) {
      far_key<G, decltype(map)::value>(dk, g, walk, band, load);
    });
    write_rows(walk, args.dk, dk, /*stage=*/1);
  };
  const auto gradient_of_values = [&] {
    Block a[kTiles], dv[kSliceBlocks];
    clear(a), clear(dv);
    if (args.has_near) near_values<G>(a, walk, band, load, weights.of[G::kMaps]);
    each_map<G>([&](auto map) {
      far_values<G, decltype(map)::value>(a, dv, walk, band, load);
    });
    cut_at_diagonal</*kBefore=*/true>(a[0]);
    each_group<Reach::kBoth>(walk, band, [&](int k, int tile) {
      add_columns<G>(dv, rounded(a[k]), load, walk.tile(1, tile), place.slice);
    });
    write_rows(walk, args.dv, dv, /*stage=*/0);
  };
  const auto body = [&] {
    gradient_of_keys();
    gradient_of_values();
    state.add(walk, load);
  };
  const auto begin_own_rows = [&](int chunk, uint64_t live) {
    walk.begin_own(0, args.k, chunk, live), walk.begin_own(1, args.v, chunk, live);
  };
  walk.run(begin_own_rows, prepare, body);
}

}  // namespace fmmformer::cuda::chunks
