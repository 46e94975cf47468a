// SPDX-License-Identifier: Apache-2.0
// The sweeps as kernels whose products are a warpgroup's, the block's four warps. A chunk's near
// field comes first; then products of all 64 rows, between which warps work on their own sixteen.
#pragma once

#include "attention/fmm/cuda/bulk_copy.cuh"
#include "attention/fmm/cuda/chunks/both_sides/launcher.cuh"
#include "attention/fmm/cuda/chunks/kernels.cuh"
#include "attention/fmm/cuda/chunks/warpgroup/far.cuh"

namespace fmmformer::cuda::chunks::warpgroup {

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
  walk.run_ahead([&] { make_features(walk, weights); },
                 [&] { state.add(walk, load), finish_products(state.sums); });
  state.store(args, blockIdx.x, place.warp);
}

/// Adds the chunk to the state; g becomes (the warp's own rows of tensor 1) (the chunk's)^T as far
/// as rows see it, and `rest`, if kRest, what rounding left off.
template <bool kRest, typename G, Sweep kSweep>
__device__ __forceinline__ void add_chunk(Fragment (&g)[kTiles], Fragment (&rest)[kTiles],
                                          State<G>& state, const Walk<G, kSweep>& walk,
                                          const Loader<G>& load) {
  Block c[kTiles];
  begin_raw_columns(c, walk);
  state.add(walk, load);
  finish_products(c, state.sums);
  seen_scores(g, walk, [&](int tile) { return rounded(c[tile]); });
  if constexpr (kRest)
    seen_scores(rest, walk, [&](int tile) { return rounded_rest(c[tile], rounded(c[tile])); });
}

/// Begins to keep the state before the chunk, which is in shared memory, for both_sides. Without
/// dropout: see gradient_segments.
template <typename G>
__device__ __forceinline__ void begin_to_keep(const State<G>& state,
                                              const Walk<G, Sweep::kForward>& walk) {
  using M = Memory<G, Sweep::kForward>;
  static_assert(M::kStateOfMap == both_sides::kStateBytes);
  constexpr int kStates = G::kMaps * both_sides::kStateBytes;
  const Place<G>& place = walk.place;
  const int64_t chunks = (walk.args.length + kChunk - 1) / kChunk;
  constexpr int kEntryBytes = both_sides::entry_bytes(G::kMaps, /*drops=*/false);
  unsigned char* entry = walk.args.chunk_states + (place.pair * chunks + walk.chunk) * kEntryBytes;
  if (threadIdx.x == 0) begin_bulk_store(entry, shared_at<char>(M::kState), kStates);
  if (lane_id() % 4 != 0) return;
  float* to = reinterpret_cast<float*>(entry + kStates) + place.warp * kBlockDim + lane_id() / 4;
#pragma unroll
  for (int l = 0; l < G::kMaps; ++l)
    to[l * G::kDim] = state.key_sums[l][0], to[l * G::kDim + 8] = state.key_sums[l][1];
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
    if constexpr (!G::kDrops) {
      if (args.chunk_states) begin_to_keep(state, walk);
    }
    if (args.has_near)
      set_near_out<G>(out, walk, band, load, weights.of[G::kMaps]);
    else
      clear(out);
    state.add(walk, load);
    const OwnRows<G, kSweep> q(walk, load);
    Fragment f[G::kMaps][G::kBlocks];
    each_map<G>([&](auto map) {
      constexpr int kMap = decltype(map)::value;
#pragma unroll
      for (int b = 0; b < G::kBlocks; ++b) f[kMap][b] = q.template features<kMap>(b);
      float factor[2];
      add_scores<G, kMap>(a, factor, f[kMap], walk, weights.of[kMap]);
      begin_state_values<G, kMap>(out, factor, f[kMap]);
    });
    Fragment scores[kTiles];
    seen_scores(scores, walk, [&](int tile) { return rounded(a[tile]); });
    begin_rows(out, scores, [&](int i) { return walk.tile(1, i); });
    finish_products(out, state.sums);
    write_rows(walk, 0, out, /*stage=*/0);
    if (args.chunk_states && threadIdx.x == 0) finish_bulk_stores();
  };
  walk.run([&](int chunk, uint64_t live) { walk.begin_own(0, chunk, live); }, begin_state, prepare,
           body);
  if (args.made.sums && place.segment == args.segments - 1)
    state.store(args, place.pair, place.warp);
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
    Block dq[kSliceBlocks];
    if (args.has_near)
      by_weight[G::kMaps] += set_near_dq<G>(dq, walk, band, load, weights.of[G::kMaps]);
    else
      clear(dq);
    Fragment g[kTiles], rest[kTiles];  // grad_out v^T, and what rounding left off
    add_chunk<true>(g, rest, state, walk, load);
    const OwnRows<G, kSweep> q(walk, load);
    each_map<G>([&](auto map) {
      constexpr int kMap = decltype(map)::value;
      by_weight[kMap] += far_query<G, kMap>(dq, g, rest, walk, q, weights.of[kMap]);
    });
    write_rows(walk, 0, dq, /*stage=*/0);
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
    Block dk[kSliceBlocks];
    if (args.has_near)
      set_near_dk<G>(dk, near, walk, band, load, weights.of[G::kMaps]);
    else
      clear(dk);
    Fragment g[kTiles], none[kTiles];
    add_chunk<false>(g, none, state, walk, load);
    each_map<G>([&](auto map) { far_key<G, decltype(map)::value>(dk, g, walk, keys); });
    write_rows(walk, 0, dk, /*stage=*/1);
  };
  const auto gradient_of_values = [&](const OwnRows<G, kSweep>& keys, const NearScores& near) {
    Block a[kTiles], dv[kSliceBlocks];
    clear(dv);
    each_group<Reach::kNear>(walk, band, [&](int k, int tile) {
      add_columns<G>(dv, near[k], load, walk.tile(1, tile), 0);
    });
    Fragment f[G::kMaps][G::kBlocks], scores[kTiles];
    each_map<G>([&](auto map) {
      constexpr int kMap = decltype(map)::value;
      begin_far_values<G, kMap>(a, dv, f[kMap], keys);
    });
    finish_products(a);
    seen_scores(scores, walk, [&](int tile) { return rounded(a[tile]); });
    begin_rows(dv, scores, [&](int i) { return walk.tile(1, i); });
    finish_products(dv);
    write_rows(walk, 1, dv, /*stage=*/0);
  };
  const auto body = [&] {
    const OwnRows<G, kSweep> keys(walk, load);
    NearScores near;
    gradient_of_keys(keys, near);
    gradient_of_values(keys, near);
  };
  const auto begin_own_rows = [&](int chunk, uint64_t live) {
    walk.begin_own(0, chunk, live), walk.begin_own(1, chunk, live);
  };
  walk.run(begin_own_rows, begin_state, prepare, body);
}

}  // namespace fmmformer::cuda::chunks::warpgroup
