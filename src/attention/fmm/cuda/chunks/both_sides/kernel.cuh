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

/// What threads ask for during the walk, which have no registers for it; weights; events.
template <typename G>
__device__ __forceinline__ void begin_shared_memory(const Walk<G>& walk, int group, int thread) {
  using M = Memory<G>;
  using Role = Groups<G>;
  const SweepArgs& args = walk.args;
  if (threadIdx.x < G::kFields) {
    const bool far = threadIdx.x < G::kMaps;
    shared_at<float>(M::kWeights)[threadIdx.x] =
        weight_value(far ? args.far_weight : args.near_weight, far ? threadIdx.x : 0, walk.h, 0);
  }
  if (group == Role::kValues && thread < kAllEvents) walk.begin_event(thread);
  if constexpr (G::kDrops) {  // of the band that is made first: see begin_near
    if (group == Role::kValues && args.has_near)
      begin_dropout_word(walk, walk.end * kChunk < args.length ? walk.end : walk.end - 1, thread);
  }
  if (group == Role::kKeys && thread == 0) {
    *shared_at<int2>(M::kPlace) = make_int2(walk.b, walk.h);
    *shared_at<int>(M::kBegin) = walk.begin;
    *shared_at<int>(M::kEnd) = walk.end;
    *shared_at<int>(M::kReadUntil) = args.segments > 1 ? walk.end - 1 : -1;
  }
}
/// Which tokens are live, the band's bits, and a triangle of ones.
template <typename G>
__device__ __forceinline__ void look_around(const Walk<G>& walk) {
  using M = Memory<G>;
  const SweepArgs& args = walk.args;
  quad_total<G>() = 0.f;
  if (threadIdx.x < kWarpSize) NearBand<G>::store(args);
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
    if (lane_id() == 0) shared_at<uint64_t>(M::kLive)[chunk + 1] = bits;
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
__device__ __forceinline__ void load_taken(float2 (&taken)[G::kMaps][4], int first, int segments,
                                           int piece) {
#pragma unroll
  for (int i = 0; i < G::kMaps * 4; ++i) taken[i / 4][i % 4] = make_float2(0.f, 0.f);
#pragma unroll 1
  for (int s = first; s < segments; ++s) {
    const float* sums = shared_at<float>(Memory<G>::kTaken) + (s - 1) * G::kMaps * G::kDim;
#pragma unroll
    for (int i = 0; i < G::kMaps * 4; ++i) {
      const float* at = sums + i / 4 * G::kDim + piece * kPiece + i % 4 * 2;
      const float2 two = *reinterpret_cast<const float2*>(at);
      taken[i / 4][i % 4].x += two.x, taken[i / 4][i % 4].y += two.y;
    }
  }
}
/// Takes that from the segment's dk or, of two segments, from a half of the first one's. A thread's
/// rows come by way of shared memory, all of them at once. Short code, since it is run once: an
/// instruction that is new to a multiprocessor takes longer to come than to run. meanwhile(): other
/// work, when the cluster's other blocks need not wait any more.
template <typename G, typename Meanwhile>
__device__ __forceinline__ void subtract_later_segments(const SweepArgs& args,
                                                        const Meanwhile& meanwhile) {
  using M = Memory<G>;
  constexpr int kThreads = Groups<G>::kThreads, kRowsApart = kThreads / G::kPieces;
  constexpr int kMostRows = (M::kMostChunks / 3 + 1) * kChunk;        // of a third, or half a half
  constexpr int kAtOnce = (kMostRows + kRowsApart - 1) / kRowsApart;  // rows of a thread
  static_assert((kAtOnce * kThreads + kMostRows * G::kPieces) * 16 <= M::kKeySums);
  const auto cluster = cooperative_groups::this_cluster();
  const int thread = thread_anew(), piece = thread % G::kPieces;
  const int segment = cluster.block_rank(), begin = *shared_at<int>(M::kBegin),
            end = *shared_at<int>(M::kEnd);
  int first = begin, last = segment + 1 < args.segments ? end : begin, later_from = segment + 1;
  if (args.segments == 2) {
    const int all = segment == 0 ? end : begin, middle = all / 2;
    first = segment == 0 ? 0 : middle, last = segment == 0 ? middle : all;
    later_from = 1;
  }
  int token = first * kChunk + thread / G::kPieces;
  last *= kChunk;  // which a later segment follows
  if (!has_piece<G>(args.head_dim, piece)) last = 0;
  const auto place = [&](int i) { return shared_at<uint4>(0) + i * kThreads + thread; };
  const int2 of_pair = Walk<G>::batch_and_head();
  const auto first_piece = [&](const View& of) {
    return static_cast<Elem*>(of.data) + of_pair.x * of.batch_stride + of_pair.y * of.head_stride +
           token * of.row_stride + piece * kPiece;
  };
  const auto begin_rows = [&](const View& of, int to) {
    const Elem* from = first_piece(of);
#pragma unroll 1
    for (int i = token; i < last; i += kRowsApart, ++to, from += kRowsApart * of.row_stride)
      copy_async(place(to), from, true);
  };
  cluster.barrier_arrive();
  begin_rows(args.k, 0);
  meanwhile();
  cluster.barrier_wait();  // all have walked: their dk is written, and what they take is here
  begin_rows(args.dk, kAtOnce);
  float2 taken[G::kMaps][4];
  load_taken<G>(taken, later_from, args.segments, piece);
  const bool* mask = args.token_mask ? args.token_mask + of_pair.x * int64_t(args.length) : nullptr;
  Elem* to = first_piece(args.dk);
  wait_for_copies();
#pragma unroll 1
  for (int i = 0; token < last; ++i, token += kRowsApart, to += kRowsApart * args.dk.row_stride) {
    if (mask && !mask[token]) continue;  // dead tokens have zeros, whatever their keys are
    uint4 gradients = *place(kAtOnce + i);
    subtract_sums<G>(gradients, *place(i), taken);
    *reinterpret_cast<uint4*>(to) = gradients;
  }
}
/// What is left when a block has walked. By one code for all warps: see subtract_later_segments.
template <typename G>
__device__ __forceinline__ void finish_gradients(const SweepArgs& args, bool reduces_weights) {
  const int thread = thread_anew();
  const int field = __shfl_sync(~0u, thread / kWarpSize, 0);  // a warp a field
  const bool reduces = reduces_weights && field < G::kFields;
  unsigned drawn = 0;
  if (args.weight_sums && !reduces_weights) store_weight_sums<G>(args, thread);
  const auto hand_in = [&] {
    if (reduces) drawn = WeightReduction<G>(args, field).hand_in();
  };
  if (args.segments > 1)
    subtract_later_segments<G>(args, hand_in);
  else
    hand_in();
  if (reduces) WeightReduction<G>(args, field).finish(drawn);
}

/// Calls step(load) for every chunk.
template <typename G, typename Step>
__device__ __forceinline__ void walk_back(Walk<G>& walk, const Step& step) {
  Loader<G> load(thread_anew() % kWarpSize);
  // From shared memory: in the register that it had before the walk it would stay, even if spilled.
  walk.chunk = *shared_at<int>(Memory<G>::kEnd);
#pragma unroll 1
  while (walk.goes_on()) {
    walk.step_back();
    walk.forget(), load.forget();
    step(load);
    wait_for_copies();
    if (walk.goes_on()) await_next_rows(walk);
    show_to_warpgroup();
    meet_block();
  }
}
/// What the band's first step in the walk needs of the next segment's first queries. By the values'
/// warpgroup.
template <typename G>
__device__ __forceinline__ void begin_near(const Walk<G>& walk) {
  using M = Memory<G>;
  if (walk.args.has_near && walk.end * kChunk < walk.args.length) {
    make_near(walk, Loader<G>());
    if constexpr (G::kDrops) {
      begin_dropout_word(walk, walk.end - 1, thread_anew() % kGroupThreads);
      wait_for_copies();
    }
  } else {
    for (int i = thread_anew() % kGroupThreads; i < M::kNearBytes / 16; i += kGroupThreads)
      shared_at<uint4>(M::kNear)[i] = make_uint4(0, 0, 0, 0);
  }
  named_barrier(kAmongValues, kGroupThreads);
}
template <typename G>
__global__ void __launch_bounds__(Groups<G>::kThreads, 1)
    gradient_kernel(const __grid_constant__ SweepArgs args, const __grid_constant__ RowMaps maps,
                    bool reduces_weights) {
  using Role = Groups<G>;
  Walk<G> walk(args, maps);
  const int group = __shfl_sync(~0u, threadIdx.x / kGroupThreads, 0);
  const int thread = threadIdx.x % kGroupThreads;
  begin_shared_memory(walk, group, thread);
  begin_first_rows(walk, group, thread);
  look_around(walk);
  __syncthreads();
  if (args.segments > 1) sum_segment(walk, group, thread);
  // By those who have no sums to store.
  if (group >= G::kMaps && group < 2 * G::kMaps && thread == 0)
    begin_state(walk, walk.end - 1, Map<G>(group - G::kMaps));
  await_first_rows(walk);
  show_to_warpgroup();
  const auto cluster = cooperative_groups::this_cluster();
  if (args.segments > 1)
    cluster.sync();
  else
    meet_block();
  // Others' parts of the state are read by the values' warpgroup alone: see Walk::await_readers.
  if (args.segments > 1 && group != Role::kValues) cluster.barrier_arrive();
  if (group < Role::kKeys) {
    leave_registers<Role::kOfQueries>();
    Map<G> map(group);
    DotSums<G> sums;
    walk_back(walk, [&](const Loader<G>& load) {
      map.forget();
      query_step(walk, load, map, sums);
    });
    put_weight_sum<G>(quad_total<G>(), walk.tile, map.index);
    if (args.segments > 1) {
      cluster.barrier_wait();  // long since: see Walk::await_readers
      sums.send(map.index, walk.tile);
    }
    take_registers<Role::kOfAll>();
  } else if (group == Role::kKeys) {
    if constexpr (Role::kOfKeys != Role::kOfAll) leave_registers<Role::kOfKeys>();
    walk_back(walk, [&](const Loader<G>& load) { key_step(walk, load); });
    if constexpr (Role::kOfKeys != Role::kOfAll) take_registers<Role::kOfAll>();
  } else {
    take_registers<Role::kOfValues>();
    begin_near(walk);
    StateAfter<G> state;
    state.begin(walk);
    if (args.segments > 1) cluster.barrier_arrive();
    walk_back(walk, [&](const Loader<G>& load) { value_step(walk, load, state); });
    put_weight_sum<G>(quad_total<G>(), walk.tile, G::kMaps);
    leave_registers<Role::kOfAll>();
  }
  await_stores();
  meet_block();
  finish_gradients<G>(args, reduces_weights);
}

}  // namespace fmmformer::cuda::chunks::both_sides
