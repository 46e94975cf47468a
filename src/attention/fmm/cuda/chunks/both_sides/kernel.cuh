// SPDX-License-Identifier: Apache-2.0
// The sweep as a kernel. The blocks of a pair's segments are a cluster: what the normalisers of
// later segments' queries take from dk, a sum of a few hundred numbers, is known when all have
// walked, and is taken from dk then.
#pragma once

#include <cooperative_groups.h>

#include "attention/fmm/cuda/chunks/both_sides/keys.cuh"
#include "attention/fmm/cuda/chunks/both_sides/queries.cuh"
#include "attention/fmm/cuda/chunks/both_sides/segments.cuh"
#include "attention/fmm/cuda/chunks/both_sides/values.cuh"
#include "attention/fmm/cuda/chunks/both_sides/weight_sums.cuh"

namespace fmmformer::cuda::chunks::both_sides {

/// Where the pair's rows begin, which tokens are live, and a triangle of ones.
template <typename G>
__device__ __forceinline__ void look_around(const Walk<G>& walk) {
  using M = Memory<G>;
  const SweepArgs& args = walk.args;
#pragma unroll
  for (int tensor = 0; tensor < kAllTensors; ++tensor) {
    if (threadIdx.x != tensor) continue;
    const View& of = walk.view(tensor);
    shared_at<Elem*>(M::kBases)[tensor] =
        static_cast<Elem*>(of.data) + walk.b * of.batch_stride + walk.h * of.head_stride;
  }
  if (threadIdx.x < G::kMaps)
    shared_at<float>(M::kWeights)[threadIdx.x] =
        weight_value(args.far_weight, threadIdx.x, walk.h, 0);
#pragma unroll 1
  for (int i = threadIdx.x; i < kChunk * G::kPieces; i += Groups<G>::kThreads) {
    const int row = i / G::kPieces, piece = i % G::kPieces;
    uint32_t ones[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int column = piece * kPiece + 2 * j;
      ones[j] = column < row ? kOnes : column == row ? kOnes & 0xffffu : 0;
    }
    *shared_at<uint4>(M::kTriangle + piece_place<G>(row, piece)) =
        make_uint4(ones[0], ones[1], ones[2], ones[3]);
  }
  const bool* mask = args.token_mask ? args.token_mask + int64_t(walk.b) * args.length : nullptr;
#pragma unroll 1
  for (int chunk = walk.begin - 1 + int(threadIdx.x / kWarpSize);
       chunk <= max(walk.end, walk.sums_end); chunk += Groups<G>::kThreads / kWarpSize) {
    uint64_t bits = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = chunk * kChunk + i * kWarpSize + lane_id();
      const bool live = token >= 0 && token < args.length && (!mask || mask[token]);
      bits |= uint64_t(__ballot_sync(~0u, live)) << i * kWarpSize;
    }
    if (lane_id() == 0) shared_at<uint64_t>(M::kLive)[chunk - walk.begin + 1] = bits;
  }
}

/// Eight numbers of dk less the slopes of features times sums.
template <typename G>
__device__ __forceinline__ void subtract_sums(uint4& gradients, const uint4& keys,
                                              const float2 (&sums)[G::kMaps][4]) {
  const uint32_t x[4] = {keys.x, keys.y, keys.z, keys.w};
  uint32_t rows[4] = {gradients.x, gradients.y, gradients.z, gradients.w};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    float low, high;
    Bf16::unpack(rows[j], low, high);
    const uint32_t decay = decay_of(x[j]);
    each_map<G>([&](auto map) {
      constexpr int kMap = decltype(map)::value;
      float slope[2];
      slope_pair<kMap>(x[j], decay, slope[0], slope[1]);
      low -= slope[0] * sums[kMap][j].x, high -= slope[1] * sums[kMap][j].y;
    });
    rows[j] = Bf16::pack(low, high);
  }
  gradients = make_uint4(rows[0], rows[1], rows[2], rows[3]);
}

/// What the queries of segment `first` and later ones take from dk, of a piece's channels.
template <typename G>
__device__ __forceinline__ void load_later_sums(float2 (&later)[G::kMaps][4], int first,
                                                int segments, int piece) {
  const auto cluster = cooperative_groups::this_cluster();
#pragma unroll
  for (int i = 0; i < G::kMaps * 4; ++i) later[i / 4][i % 4] = make_float2(0.f, 0.f);
#pragma unroll 1
  for (int s = first; s < segments; ++s) {
    const float* sums = cluster.map_shared_rank(shared_at<float>(Memory<G>::kDotSums), s);
#pragma unroll
    for (int i = 0; i < G::kMaps * 4; ++i) {
      const float* at = sums + i / 4 * G::kDim + piece * kPiece + i % 4 * 2;
      const float2 two = *reinterpret_cast<const float2*>(at);
      later[i / 4][i % 4].x += two.x, later[i / 4][i % 4].y += two.y;
    }
  }
}
/// Takes that from the segment's dk or, of two segments, from a half of the first one's. A thread's
/// rows come by way of shared memory, all of them at once. Short code, since it is run once: an
/// instruction that is new to a multiprocessor takes longer to come than to run.
template <typename G>
__device__ __forceinline__ void subtract_later_segments(const SweepArgs& args) {
  constexpr int kThreads = Groups<G>::kThreads, kRowsApart = kThreads / G::kPieces;
  constexpr int kAtOnce = 8;  // rows of a thread
  static_assert(2 * kAtOnce * kThreads * 16 <= Memory<G>::kKeySums);
  int thread, block;  // not to be kept during the walk, nor what follows from them
  asm volatile("mov.u32 %0, %%tid.x;\nmov.u32 %1, %%ctaid.x;\n" : "=r"(thread), "=r"(block));
  const Walk<G> walk(args, block);
  const auto cluster = cooperative_groups::this_cluster();
  const int piece = thread % G::kPieces;
  int first = walk.begin, last = walk.segment + 1 < args.segments ? walk.end : first,
      later_from = walk.segment + 1;
  if (args.segments == 2) {
    const int all = first_chunk(args, 1), middle = all / 2;
    first = walk.segment == 0 ? 0 : middle, last = walk.segment == 0 ? middle : all;
    later_from = 1;
  }
  int token = first * kChunk + thread / G::kPieces;
  last *= kChunk;  // which a later segment follows
  const auto place = [&](int i) { return shared_at<uint4>(0) + i * kThreads + thread; };
  const auto begin = [&](int tensor, int to) {
#pragma unroll 1
    for (int i = 0; i < kAtOnce && token + i * kRowsApart < last; ++i)
      copy_async(place(to + i), walk.row_piece(tensor, token + i * kRowsApart, piece), true);
  };
  begin(kK, 0);
  cluster.sync();
  begin(kDk, kAtOnce);
  float2 later[G::kMaps][4];
  load_later_sums<G>(later, later_from, args.segments, piece);
  cluster.barrier_arrive();  // this block needs no other's memory any more
  const bool* mask = args.token_mask ? args.token_mask + int64_t(walk.b) * args.length : nullptr;
#pragma unroll 1
  while (token < last) {
    wait_for_copies();
#pragma unroll 1
    for (int i = 0; i < kAtOnce && token < last; ++i, token += kRowsApart) {
      if (mask && !mask[token]) continue;  // dead tokens have zeros, whatever their keys are
      uint4 gradients = *place(kAtOnce + i);
      subtract_sums<G>(gradients, *place(i), later);
      *reinterpret_cast<uint4*>(walk.row_piece(kDk, token, piece)) = gradients;
    }
    begin(kK, 0), begin(kDk, kAtOnce);
  }
  cluster.barrier_wait();
}
/// What is left when a block has walked. By one code for all warps: see subtract_later_segments.
template <typename G>
__device__ __forceinline__ void finish_gradients(const SweepArgs& args, bool reduces_weights) {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;\n" : "=r"(thread));      // not to be kept during the walk
  const int field = __shfl_sync(~0u, thread / kWarpSize, 0);  // a warp a field
  const bool reduces = reduces_weights && field < G::kFields;
  unsigned drawn = 0;
  if (args.weight_sums && !reduces_weights) store_weight_sums<G>(args, thread);
  if (reduces) drawn = WeightReduction<G>(args, field).hand_in();
  if (args.segments > 1) subtract_later_segments<G>(args);
  if (reduces) WeightReduction<G>(args, field).finish(drawn);
}

/// Calls step() for every chunk.
template <typename G, typename Step>
__device__ __forceinline__ void walk_back(Walk<G>& walk, Loader<G>& load, const Step& step) {
#pragma unroll 1
  while (walk.chunk > walk.begin) {
    walk.step_back();
    walk.forget(), load.forget();
    step();
    wait_for_copies();
    show_to_warpgroup();
    meet_block();
  }
}
template <typename G>
__global__ void __launch_bounds__(Groups<G>::kThreads, 1)
    gradient_kernel(const __grid_constant__ SweepArgs args, bool reduces_weights) {
  using M = Memory<G>;
  using Role = Groups<G>;
  Walk<G> walk(args, blockIdx.x);
  const int group = __shfl_sync(~0u, threadIdx.x / kGroupThreads, 0);
  const int thread = threadIdx.x % kGroupThreads;
  if (threadIdx.x < G::kMaps) CopyEvent{shared_at<uint64_t>(M::kEvents) + threadIdx.x}.init();
  look_around(walk);
  __syncthreads();
  Loader<G> load;
  if (args.segments > 1)
    sum_segment(walk, group, thread);
  else
    begin_first_rows(walk, group, thread, /*summed=*/walk.sums_end);
  // near(): what the next segment's first queries make of the last keys.
  const auto begin_walk = [&](const auto& near) {
    // Later blocks' sums have been read, and their place may be used.
    if (args.segments > 1) cooperative_groups::this_cluster().sync();
    wait_for_copies();
    show_to_warpgroup();
    meet_block();
    near();
    if (args.segments > 1) meet_block();  // that chunk's rows make place for others
  };
  if (group < Role::kKeys) {
    leave_registers<Role::kOfQueries>();
    Map map(group, shared_at<float>(M::kWeights)[group]);
    const CopyEvent event{shared_at<uint64_t>(M::kEvents) + map.index};
    if (thread == 0) begin_state(walk, walk.end - 1, map.index, event);
    begin_walk([] {});
    float by_weight = 0.f;
    DotSums<G> sums;
    int turn = 0;
    walk_back(walk, load, [&] {
      map.forget();
      query_step(walk, load, map, event, turn, sums, by_weight);
      turn ^= 1;
    });
    put_weight_sum<G>(by_weight, walk.tile, map.index);
    sums.publish(map.index, walk.tile);
    take_registers<Role::kOfAll>();
  } else if (group == Role::kKeys) {
    if constexpr (Role::kOfKeys != Role::kOfAll) leave_registers<Role::kOfKeys>();
    begin_walk([] {});
    walk_back(walk, load, [&] { key_step(walk, load); });
    if constexpr (Role::kOfKeys != Role::kOfAll) take_registers<Role::kOfAll>();
  } else {
    take_registers<Role::kOfValues>();
    NearBand<G>::store(args, walk.h);
    StateAfter<G> state;
    state.begin(walk);
    begin_walk([&] {
      if (args.has_near && walk.end * kChunk < args.length) {
        make_near(walk, load);
        return;
      }
      for (int i = thread; i < M::kNearBytes / 16; i += kGroupThreads)
        shared_at<uint4>(M::kNear)[i] = make_uint4(0, 0, 0, 0);
    });
    float by_weight = 0.f;
    walk_back(walk, load, [&] { value_step(walk, load, state, by_weight); });
    put_weight_sum<G>(by_weight, walk.tile, G::kMaps);
    leave_registers<Role::kOfAll>();
  }
  meet_block();
  finish_gradients<G>(args, reduces_weights);
}

}  // namespace fmmformer::cuda::chunks::both_sides
