// SPDX-License-Identifier: Apache-2.0
// The state of a walk: what a segment begins with, and the keeper, who hands it to the rows'
// warpgroups.
#pragma once

#include <cooperative_groups.h>

#include "attention/fmm/cuda/chunks/both_sides/forward/shape.cuh"
#include "attention/fmm/cuda/chunks/both_sides/weight_sums.cuh"

namespace fmmformer::cuda::chunks::both_sides::forward {

/// key_sums += the sums of a chunk's feature rows, of the warp's channels g and g + 8.
template <typename G>
__device__ __forceinline__ void add_key_sums(float (&key_sums)[2], const Loader<G>& load, int tile,
                                             int features) {
  float sums[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
  for (int t = 0; t < kTiles; ++t)
    Bf16::multiply(sums, load.left_turned(features + t * G::kTile, tile), {{kOnes, kOnes}});
  key_sums[0] += sums[0], key_sums[1] += sums[2];
}

/// Asks for a chunk's rows of a tensor.
template <typename G>
__device__ __forceinline__ void copy_chunk_of(const Walk<G>& walk, int tensor, int chunk, int to,
                                              int thread) {
  const SweepArgs& args = walk.args;
  const auto of = [&](const View& view) { return HeadRows(view, args, walk.b, walk.h); };
  copy_chunk<G>(tensor == kQueries ? of(args.q)
                : tensor == kKeys  ? of(args.k)
                                   : of(args.v),
                chunk, to, thread);
}
/// Asks for rows, in two groups of copies: of the chunk that the warpgroup sums up first, if there
/// is one, and of the first one that it has; the first rows also see keys before their chunk. Short
/// code, since it is run once: an instruction that is new to a multiprocessor takes longer to come
/// than to run.
template <typename G>
__device__ __forceinline__ void begin_first_rows(const Walk<G>& walk, int group, int thread) {
  using M = Memory<G>;
  const int part = M::kPart + group * M::kPartBytes, own = walk.begin + group - 1,
            summed = walk.sums_begin + group;
#pragma unroll 1
  for (int i = 0; i < 7; ++i) {
    const int tensor = i < 6 ? kKeys + (i & 1) : kQueries;
    const int chunk = i < 2 ? summed : i < 4 ? walk.begin - 1 : own;
    int to = (i < 2 ? part : walk.seen_of(chunk)) + (i & 1) * G::kArea;
    if (i == 6) to = walk.queries_of(own);
    const bool wanted = i < 2   ? summed < walk.sums_end
                        : i < 4 ? group == 1
                                : group > 0 && own < walk.end;
    if (wanted) copy_chunk_of(walk, tensor, chunk, to, thread);
    if (i == 1) commit_copies();
  }
  commit_copies();
}

/// The block's part of the sums, where the other blocks find it, from begin_first_rows on. Every
/// warpgroup makes one chunk's features; then one for each map adds them all up.
template <typename G>
__device__ __forceinline__ void sum_segment(const Walk<G>& walk, const Loader<G>& load, int group) {
  using M = Memory<G>;
  const int thread = threadIdx.x % kGroupThreads;
  const int rows = M::kPart + group * M::kPartBytes;
  Block sums[kTiles];
  float key_sums[2] = {0.f, 0.f};
  clear(sums);
  wait_for_older_copies();
#pragma unroll 1
  for (int first = walk.sums_begin; first < walk.sums_end; first += kGroups) {
    if (first + group < walk.sums_end) {  // a thread reads what it has copied
      const uint64_t live = walk.live(first + group);
      if (walk.args.token_mask)
        clear_dead<G>(rows, live, thread), clear_dead<G>(rows + G::kArea, live, thread);
      make_key_features<G, /*kShort=*/true>(rows, rows + 2 * G::kArea, walk.args.head_dim, live,
                                            thread);
    }
    show_to_warpgroup();
    __syncthreads();
    if (group < G::kMaps) {
      const int parts = min(kGroups, walk.sums_end - first);
      const auto features_of = [&](int part) {
        return M::kPart + part * M::kPartBytes + (2 + group) * G::kArea;
      };
#pragma unroll 1
      for (int part = 0; part < parts; ++part)
        begin_turned_rows<G>(sums, features_of(part), M::kPart + part * M::kPartBytes + G::kArea);
#pragma unroll 1
      for (int part = 0; part < parts; ++part)
        add_key_sums(key_sums, load, walk.tile, features_of(part));
      finish_products(sums);
    }
    __syncthreads();
    if (const int next = first + kGroups + group; next < walk.sums_end) {
#pragma unroll 1
      for (int i = 0; i < 2; ++i) copy_chunk_of(walk, kKeys + i, next, rows + i * G::kArea, thread);
    }
    wait_for_copies();
  }
  if (group >= G::kMaps) return;
#pragma unroll
  for (int i = 0; i < 2 * kTiles; ++i) {
    const float(&c)[4] = sums[i / 2][i % 2];
    shared_at<float4>(M::kPart)[(group * 2 * kTiles + i) * kGroupThreads + thread] =
        make_float4(c[0], c[1], c[2], c[3]);
  }
  show_to_warpgroup();  // for the copies that come there later
  if (lane_id() % 4 != 0) return;
  float* to = shared_at<float>(M::kPartKeySums) + group * G::kDim + walk.tile * kBlockDim;
  to[row_of(0)] = key_sums[0], to[row_of(2)] = key_sums[1];
}

/// state = what the segment begins with, from the shared memory of the cluster's blocks.
template <typename G>
__device__ __forceinline__ void begin_state(State<G>& state, const Walk<G>& walk) {
  using M = Memory<G>;
  const auto cluster = cooperative_groups::this_cluster();
#pragma unroll 1
  for (int s = 0; s < walk.parts_end(); ++s) {
    const float4* all =
        cluster.map_shared_rank(shared_at<float4>(M::kPart), s) + threadIdx.x % kGroupThreads;
    const float* key_sums = cluster.map_shared_rank(shared_at<float>(M::kPartKeySums), s) +
                            walk.tile * kBlockDim + lane_id() / 4;
#pragma unroll
    for (int i = 0; i < G::kMaps * 2 * kTiles; ++i) {
      const float4 four = all[i * kGroupThreads];
      float(&c)[4] = state.sums[i / (2 * kTiles)][i / 2 % kTiles][i % 2];
      c[0] += four.x, c[1] += four.y, c[2] += four.z, c[3] += four.w;
    }
#pragma unroll
    for (int i = 0; i < G::kMaps * 2; ++i)
      state.key_sums[i / 2][i % 2] += key_sums[i / 2 * G::kDim + i % 2 * 8];
  }
}

/// Begins to keep the state before the chunk, which is in shared memory.
template <typename G>
__device__ __forceinline__ void begin_to_keep(const State<G>& state, const Walk<G>& walk,
                                              int from) {
  constexpr int kStates = G::kMaps * kStateBytes;
  unsigned char* entry = entry_of<G>(walk.args, walk.pair, walk.chunk);
  if (threadIdx.x % kGroupThreads == 0) {
    begin_bulk_store(entry, shared_at<char>(from), kStates);
    commit_bulk_stores();
  }
  if (lane_id() % 4 != 0) return;
  float* to = reinterpret_cast<float*>(entry + kStates) + walk.tile * kBlockDim + lane_id() / 4;
#pragma unroll
  for (int i = 0; i < G::kMaps * 2; ++i)
    to[i / 2 * G::kDim + i % 2 * 8] = state.key_sums[i / 2][i % 2];
}

/// All chunks.
template <typename G>
__device__ __forceinline__ void keep(Walk<G>& walk, Loader<G>& load, State<G>& state) {
  const int thread = threadIdx.x % kGroupThreads;
  int group = 0, turn = 0;
#pragma unroll 1
  for (; walk.chunk < walk.end; ++walk.chunk) {
    walk.forget(), load.forget();
    // The state's place was that of the chunk before the last.
    const int before = group == kRowGroups - 1 ? 0 : group + 1;
    Event::of<G>(kFarDone, before).await(before == 0 ? turn : turn ^ 1);
    if (thread == 0) await_stores_read<Memory<G>::kStatePlaces - 1>();
    named_barrier(kInGroup, kGroupThreads);
    const int kept = walk.state_of(walk.chunk);
#pragma unroll
    for (int l = 0; l < G::kMaps; ++l)
      put_rows(load, kept + l * G::kArea + walk.tile * G::kTile, state.sums[l]);
    KeySumOperands<G>::store(walk.key_sums_of(walk.chunk), state, walk.tile);
    show_to_warpgroup();
    Event::of<G>(kStateMade, group).say();
    if (walk.args.chunk_states) {
      named_barrier(kInGroup, kGroupThreads);
      begin_to_keep(state, walk, kept);
    }
    Event::of<G>(kFeaturesMade, group).await(turn);
    const int features = walk.features_of(group), values = walk.seen_of(walk.chunk) + G::kArea;
#pragma unroll
    for (int l = 0; l < G::kMaps; ++l)
      begin_turned_rows<G>(state.sums[l], features + l * G::kArea, values);
#pragma unroll
    for (int l = 0; l < G::kMaps; ++l)
      add_key_sums(state.key_sums[l], load, walk.tile, features + l * G::kArea);
    finish_products(state.sums);
    Event::of<G>(kAdded, group).say();
    if (++group == kRowGroups) group = 0, turn ^= 1;
  }
  await_stores_read();
}

}  // namespace fmmformer::cuda::chunks::both_sides::forward
