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

namespace fmmformer::cuda::chunks::both_sides {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define FMM_REGISTERS(how, count) \
  asm volatile("setmaxnreg." how ".sync.aligned.u32 %0;\n" ::"n"(count))
#else
#define FMM_REGISTERS(how, count)
#endif

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

/// What later segments' queries take from dk, of a piece's channels.
template <typename G>
__device__ __forceinline__ void load_later_sums(float2 (&later)[G::kMaps][4], const Walk<G>& walk,
                                                int piece) {
  const auto cluster = cooperative_groups::this_cluster();
#pragma unroll
  for (int i = 0; i < G::kMaps * 4; ++i) later[i / 4][i % 4] = make_float2(0.f, 0.f);
#pragma unroll 1
  for (int s = walk.segment + 1; s < walk.args.segments; ++s) {
    const float* sums = cluster.map_shared_rank(shared_at<float>(Memory<G>::kDotSums), s);
#pragma unroll
    for (int i = 0; i < G::kMaps * 4; ++i) {
      const float* at = sums + i / 4 * G::kDim + piece * kPiece + i % 4 * 2;
      const float2 two = *reinterpret_cast<const float2*>(at);
      later[i / 4][i % 4].x += two.x, later[i / 4][i % 4].y += two.y;
    }
  }
}
/// Takes that from the segment's dk; by all warpgroups but the values', which has no registers for
/// it. Short code, since it is run once: an instruction that is new to a multiprocessor takes
/// longer to come than to run. Rows of keys, which do not depend on it, are asked for before the
/// cluster meets.
template <typename G>
__device__ __forceinline__ void subtract_later_segments(Walk<G>& walk) {
  walk.forget();
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;\n" : "=r"(thread));  // not to be kept during the walk
  const SweepArgs& args = walk.args;
  const auto cluster = cooperative_groups::this_cluster();
  constexpr int kRowsApart = Groups<G>::kValues * kGroupThreads / G::kPieces;
  const int piece = thread % G::kPieces, last = min(walk.end * kChunk, args.length);
  int token = walk.segment + 1 < args.segments ? walk.begin * kChunk + thread / G::kPieces : last;
  const auto load = [&](int tensor, int from) {
    return *reinterpret_cast<const uint4*>(walk.row_piece(tensor, min(from, last - 1), piece));
  };
  uint4 keys = load(kK, token);
  cluster.sync();
  uint4 gradients = load(kDk, token);
  float2 later[G::kMaps][4];
  load_later_sums(later, walk, piece);
  cluster.barrier_arrive();  // this block needs no other's memory any more
#pragma unroll 1
  for (; token < last; token += kRowsApart) {
    const uint4 next_keys = load(kK, token + kRowsApart),
                next_gradients = load(kDk, token + kRowsApart);
    // Dead tokens have zeros, whatever their keys are.
    if (walk.live(token / kChunk) >> token % kChunk & 1) {
      subtract_sums<G>(gradients, keys, later);
      *reinterpret_cast<uint4*>(walk.row_piece(kDk, token, piece)) = gradients;
    }
    keys = next_keys, gradients = next_gradients;
  }
  cluster.barrier_wait();
}
/// What the values' warpgroup does meanwhile.
__device__ __forceinline__ void await_other_segments() {
  const auto cluster = cooperative_groups::this_cluster();
  cluster.sync();
  cluster.sync();
}

/// One field's gradient of blend weights, from a sum of rows g and g + 8 a lane.
template <typename G>
__device__ __forceinline__ void put_weight_sum(float sum, int tile, int field) {
#pragma unroll
  for (int other = 4; other < kWarpSize; other *= 2) sum += __shfl_xor_sync(~0u, sum, other);
  if (lane_id() == 0) shared_at<float>(Memory<G>::kWeightSums)[tile * G::kFields + field] = sum;
}
/// Into the first channel's place in args.weight_sums; the others become zeros. By the keys'
/// threads.
template <typename G>
__device__ __forceinline__ void store_weight_sums(const SweepArgs& args, int own) {
  const float* all = shared_at<float>(Memory<G>::kWeightSums);
  for (int i = own; i < G::kFields * G::kDim; i += kGroupThreads) {
    const int field = i / G::kDim, channel = i % G::kDim;
    if (field == G::kMaps && !args.has_near) continue;
    float sum = 0.f;
    for (int tile = 0; channel == 0 && tile < kTiles; ++tile) sum += all[tile * G::kFields + field];
    args.weight_sums[(blockIdx.x * int64_t(G::kFields) + field) * G::kDim + channel] = sum;
  }
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
    gradient_kernel(const __grid_constant__ SweepArgs args) {
  using M = Memory<G>;
  using Role = Groups<G>;
  Walk<G> walk(args);
  const int group = __shfl_sync(~0u, threadIdx.x / kGroupThreads, 0);
  const int thread = threadIdx.x % kGroupThreads;
  if (threadIdx.x < G::kMaps) CopyEvent{shared_at<uint64_t>(M::kEvents) + threadIdx.x}.init();
  look_around(walk);
  __syncthreads();
  Loader<G> load;
  if (args.segments > 1) sum_segment(walk);
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
    FMM_REGISTERS("dec", Role::kOfQueries);
    Map map(args, group, walk.h);
    const CopyEvent event{shared_at<uint64_t>(M::kEvents) + map.index};
    if (thread == 0) begin_state(walk, walk.end - 1, map.index, event);
#pragma unroll 1
    for (int further = 0; further >= -1; --further) {
      if (map.index == 0) begin_rows_of(walk, kQ, further, thread);
      begin_numbers_of(walk, further, map.index, thread);
      if (map.index == G::kMaps - 1) begin_rows_of(walk, kGradOut, further, thread);
    }
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
    meet_block();
    if (args.segments > 1) subtract_later_segments(walk);
  } else if (group == Role::kKeys) {
    if constexpr (Role::kOfKeys != 128) FMM_REGISTERS("dec", Role::kOfKeys);
#pragma unroll 1
    for (int further = 0; further >= -2; --further)
      begin_rows_of(walk, kK, further, thread), begin_rows_of(walk, kV, further, thread);
    begin_walk([] {});
    walk_back(walk, load, [&] { key_step(walk, load); });
    meet_block();
    if (args.weight_sums) store_weight_sums<G>(args, thread);
    if (args.segments > 1) subtract_later_segments(walk);
  } else {
    FMM_REGISTERS("inc", Role::kOfValues);
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
    meet_block();
    if (args.segments > 1) await_other_segments();
  }
}

}  // namespace fmmformer::cuda::chunks::both_sides
