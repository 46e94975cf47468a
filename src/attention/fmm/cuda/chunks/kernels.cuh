// SPDX-License-Identifier: Apache-2.0
// The sweeps as kernels: a thread block walks its segment's chunks.
//
// Before a chunk's products all threads make its feature rows and put down the state before it;
// then every warp works on its own rows and adds the chunk to its part of the state.
#pragma once

#include "attention/fmm/cuda/chunks/far.cuh"

namespace fmmformer::cuda::chunks {

template <typename G>
constexpr int kBlocksAtOnce = blocks_at_once(G::kDim);

template <typename G, bool kOfQueries>
__global__ void __launch_bounds__(G::kThreads, kBlocksAtOnce<G>)
    sum_kernel(const __grid_constant__ SweepArgs args) {
  constexpr Sweep kSweep = kOfQueries ? Sweep::kSumOfQueries : Sweep::kSumOfKeys;
  Place<G> place(args);
  if (is_of_no_use(args, place.segment, kOfQueries)) return;
  Loader<G> load;
  const Weights<G> weights(args, place.h);
  Walk<G, kSweep> walk(args, place);
  State<G> state;
  state.clear();
  walk.run_ahead([&] { make_features(walk, weights); }, [&] { state.add(walk, load); });
  state.store(args, blockIdx.x, place.warp);
}

template <typename G>
__global__ void __launch_bounds__(G::kThreads, kBlocksAtOnce<G>)
    forward_kernel(const __grid_constant__ SweepArgs args) {
  constexpr Sweep kSweep = Sweep::kForward;
  Place<G> place(args);
  Loader<G> load;
  const Weights<G> weights(args, place.h);
  const Band<G, kSweep> band(args);
  Walk<G, kSweep> walk(args, place);
  State<G> state;
  const auto begin_state = [&] { state.begin(args, place); };
  const auto prepare = [&] {
    load.forget();
    make_features(walk, weights);
    state.template publish<kSweep>(place.warp);
    KeySumOperands<G>::store(Memory<G, kSweep>::kKeySums, state, place.warp);
  };
  const auto body = [&] {
    Block a[kTiles], out[kSliceBlocks];
    clear(out);
    // With many sums features are made twice: registers do not hold them.
    constexpr bool kTwice = G::kSlices > 1 || G::kMaps > 2;
    const OwnRows<G, kSweep> q(walk, load);
    float factor[G::kMaps][2];
    each_map<G>([&](auto map) {
      constexpr int kMap = decltype(map)::value;
      Fragment f[G::kBlocks];
      const auto features = [&](int b) { return f[b] = q.template features<kMap>(b); };
      const auto again = [&](int b) { return f[b]; };
      add_scores<G, kMap>(a, factor[kMap], features, walk, band, load, weights.of[kMap]);
      if constexpr (!kTwice) add_state_values<G, kMap>(out, factor[kMap], again, walk, load);
    });
    if (args.has_near) near_forward<G>(a, walk, band, load, weights.of[G::kMaps]);
    each_group<Reach::kBoth>(walk, band, [&](int k, int tile) {
      add_columns<G>(out, rounded(a[k]), load, walk.tile(1, tile), place.slice);
    });
    if constexpr (kTwice) {
      each_map<G>([&](auto map) {
        constexpr int kMap = decltype(map)::value;
        const auto features = [&](int b) { return q.template features<kMap>(b); };
        add_state_values<G, kMap>(out, factor[kMap], features, walk, load);
      });
    }
    write_rows(walk, 0, out, /*stage=*/0);
    state.add(walk, load);
  };
  walk.run([&](int chunk, uint64_t live) { walk.begin_own(0, chunk, live); }, begin_state, prepare,
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
  const int dim = channels<G>(args.head_dim);
  for (int i = threadIdx.x; i < G::kFields * dim; i += G::kThreads) {
    const int field = i / dim, channel = i % dim;
    if (field == G::kMaps && !args.has_near) continue;
    float sum = 0.f;
    for (int tile = 0; channel == 0 && tile < kTiles; ++tile) sum += all[tile * G::kFields + field];
    args.weight_sums[(blockIdx.x * int64_t(G::kFields) + field) * dim + channel] = sum;
  }
}

template <typename G>
__global__ void __launch_bounds__(G::kThreads, kBlocksAtOnce<G>)
    query_kernel(const __grid_constant__ SweepArgs args) {
  constexpr Sweep kSweep = Sweep::kQueries;
  Place<G> place(args);
  Loader<G> load;
  const Weights<G> weights(args, place.h);
  const Band<G, kSweep> band(args);
  Walk<G, kSweep> walk(args, place);
  State<G> state;
  const auto begin_state = [&] { state.begin(args, place); };
  float by_weight[G::kFields];
#pragma unroll
  for (int field = 0; field < G::kFields; ++field) by_weight[field] = 0.f;
  const auto prepare = [&] {
    load.forget();
    make_features(walk, weights);
    state.template publish<kSweep>(place.warp);
  };
  const auto body = [&] {
    Block g[kTiles], dq[kSliceBlocks];
    multiply_raw_groups<Reach::kBoth>(g, 1, 1, walk, band, load, [](int, int, bool) {});
    clear(dq);
    if (args.has_near) {
      by_weight[G::kMaps] += near_query<G>(dq, g, walk, band, load, weights.of[G::kMaps]);
    }
    const OwnRows<G, kSweep> q(walk, load);
    each_map<G>([&](auto map) {
      constexpr int kMap = decltype(map)::value;
      by_weight[kMap] += far_query<G, kMap>(dq, g, walk, band, q, weights.of[kMap]);
    });
    write_rows(walk, 0, dq, /*stage=*/0);
    state.add(walk, load);
  };
  const auto begin_own_rows = [&](int chunk, uint64_t live) {
    walk.begin_own(0, chunk, live), walk.begin_own(1, chunk, live);
    walk.begin_own_numbers(chunk);
  };
  walk.run(begin_own_rows, begin_state, prepare, body);
  if (args.weight_sums) store_weight_sums<G>(by_weight, args, place);
}

template <typename G>
__global__ void __launch_bounds__(G::kThreads, kBlocksAtOnce<G>)
    key_kernel(const __grid_constant__ SweepArgs args) {
  constexpr Sweep kSweep = Sweep::kKeys;
  Place<G> place(args);
  Loader<G> load;
  const Weights<G> weights(args, place.h);
  const Band<G, kSweep> band(args);
  Walk<G, kSweep> walk(args, place);
  State<G> state;
  const auto begin_state = [&] { state.begin(args, place); };
  const auto prepare = [&] {
    load.forget();
    make_features(walk, weights);
    state.template publish<kSweep>(place.warp);
  };
  // `near`: weight * probabilities, for gradient_of_values.
  const auto gradient_of_keys = [&](const OwnRows<G, kSweep>& keys, NearScores& near) {
    Block g[kTiles], dk[kSliceBlocks];
    multiply_raw_groups<Reach::kBoth>(g, 1, 1, walk, band, load, [](int, int, bool) {});
    clear(dk);
    if (args.has_near) near_key<G>(dk, near, g, walk, band, load, weights.of[G::kMaps]);
    each_map<G>([&](auto map) { far_key<G, decltype(map)::value>(dk, g, walk, band, keys); });
    write_rows(walk, 0, dk, /*stage=*/1);
  };
  const auto gradient_of_values = [&](const OwnRows<G, kSweep>& keys, const NearScores& near) {
    Block a[kTiles], dv[kSliceBlocks];
    clear(dv);
    each_map<G>([&](auto map) { far_values<G, decltype(map)::value>(a, dv, walk, band, keys); });
    cut_at_diagonal</*kBefore=*/true>(a[0]);
    each_group<Reach::kFar>(walk, band, [&](int k, int tile) {
      add_columns<G>(dv, rounded(a[k]), load, walk.tile(1, tile), place.slice);
    });
    each_group<Reach::kNear>(walk, band, [&](int k, int tile) {
      add_columns<G>(dv, near[k], load, walk.tile(1, tile), place.slice);
    });
    write_rows(walk, 1, dv, /*stage=*/0);
  };
  const auto body = [&] {
    const OwnRows<G, kSweep> keys(walk, load);
    NearScores near;
    gradient_of_keys(keys, near);
    gradient_of_values(keys, near);
    state.add(walk, load);
  };
  const auto begin_own_rows = [&](int chunk, uint64_t live) {
    walk.begin_own(0, chunk, live), walk.begin_own(1, chunk, live);
  };
  walk.run(begin_own_rows, begin_state, prepare, body);
}

}  // namespace fmmformer::cuda::chunks
