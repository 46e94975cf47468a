// SPDX-License-Identifier: Apache-2.0
// Forward as a kernel. The blocks of a pair's segments are a cluster: what a segment begins with
// comes from the others' shared memory.
#pragma once

#include "attention/fmm/cuda/chunks/both_sides/forward/keeper.cuh"
#include "attention/fmm/cuda/chunks/both_sides/forward/rows.cuh"

namespace fmmformer::cuda::chunks::both_sides::forward {

/// Weights, and backward's tickets, which are cleared.
template <typename G>
__device__ __forceinline__ void begin_weights(const Walk<G>& walk) {
  const SweepArgs& args = walk.args;
  const int field = threadIdx.x;
  if (field >= G::kFields) return;
  const bool far = field < G::kMaps;
  shared_at<float>(Memory<G>::kWeights)[field] =
      weight_value(far ? args.far_weight : args.near_weight, far ? field : 0, walk.h, 0);
  if (args.chunk_states && walk.b == 0 && walk.segment == 0) *ticket<G>(args, walk.h, field) = 0;
}
/// Which tokens are live, and that nothing has happened yet.
template <typename G>
__device__ __forceinline__ void look_around(const Walk<G>& walk) {
  using M = Memory<G>;
  const SweepArgs& args = walk.args;
  if (threadIdx.x < kHappenings * kRowGroups)
    Event{shared_address(shared_at<uint64_t>(M::kEvents) + threadIdx.x)}.init();
  if (threadIdx.x < kRowGroups) {
    walk.copy_event(threadIdx.x).init();
    shared_at<int>(M::kDone)[threadIdx.x] = 0;
  }
  if (threadIdx.x == 0) *shared_at<int2>(M::kPlace) = make_int2(walk.b, walk.h);
  const bool* mask = args.token_mask ? args.token_mask + int64_t(walk.b) * args.length : nullptr;
  const int chunks = (args.length + kChunk - 1) / kChunk;
#pragma unroll 1
  for (int chunk = int(threadIdx.x / kWarpSize) - 1; chunk <= chunks;
       chunk += kThreads / kWarpSize) {
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

template <typename G>
__global__ void __launch_bounds__(kThreads, 1)
    forward_kernel(const __grid_constant__ SweepArgs args, const __grid_constant__ RowMaps maps) {
  const auto cluster = cooperative_groups::this_cluster();
  Walk<G> walk(args, maps);
  const int group = __shfl_sync(~0u, threadIdx.x / kGroupThreads, 0);
  begin_weights(walk);
  begin_first_rows(walk, group, threadIdx.x % kGroupThreads);
  look_around(walk);
  __syncthreads();
  Loader<G> load;
  if (args.segments > 1) {
    sum_segment(walk, load, group);
    cluster.barrier_arrive();
  }
  // Once all blocks have their sums the keeper reads them; meanwhile rows may begin.
  if (group == 0) {
    leave_registers<kOfKeeper>();
    State<G> state;
    state.clear();
    if (args.segments > 1) {
      cluster.barrier_wait();
      begin_state(state, walk);
      cluster.barrier_arrive();
    }
    keep(walk, load, state);
    if (args.segments > 1) cluster.barrier_wait();
  } else {
    take_registers<kOfRows>();
    if (args.segments > 1) cluster.barrier_wait(), cluster.barrier_arrive();
    make_rows(walk, load, group - 1, [&] { cluster.barrier_wait(); });
  }
}

}  // namespace fmmformer::cuda::chunks::both_sides::forward
