// SPDX-License-Identifier: Apache-2.0
// The sweeps as kernels: a thread block walks its segment's chunks, each warpgroup in its role.
#pragma once

#include "attention/fmm/cuda/warpgroups/forward.cuh"
#include "attention/fmm/cuda/warpgroups/keys.cuh"
#include "attention/fmm/cuda/warpgroups/queries.cuh"
#include "attention/fmm/cuda/warpgroups/state.cuh"
#include "attention/fmm/cuda/warpgroups/values.cuh"

namespace fmmformer::cuda::warpgroups {

// Registers of a thread: 128 of a keeper's are the state, and products want some two dozen more.
constexpr int kKeeperRegisters = 160, kRowsRegisters = 184, kFeederRegisters = 96;
constexpr int kSweepThreads = kKeeperThreads + kGroupThreads, kSumThreads = 2 * kKeeperThreads;
// What setmaxnreg hands round is what the kernel began with; take_registers waits for more for
// ever.
constexpr int kSweepRegisters =
    (kKeeperThreads * kKeeperRegisters + kGroupThreads * kRowsRegisters) / kSweepThreads;
constexpr int kSumRegisters = (kFeederRegisters + kKeeperRegisters) / 2;
static_assert(kSweepRegisters % 8 == 0 && kSweepRegisters * kSweepThreads <= 65536);
static_assert(kSumRegisters % 8 == 0 && kSumRegisters * kSumThreads <= 65536);

__device__ __forceinline__ int group_of_thread() {
  return __shfl_sync(~0u, threadIdx.x / kGroupThreads, 0);
}

template <typename G, Sweep kSweep>
__global__ void __launch_bounds__(kSumThreads, 1)
    sum_kernel(const __grid_constant__ SweepArgs args) {
  using M = Memory<G, kSweep>;
  const Part part{.pair = int(blockIdx.x / args.segments),
                  .segment = int(blockIdx.x % args.segments)};
  if (is_of_no_use(args, part.segment, M::kOfQueries)) return;
  const Events<M> events;
  if (threadIdx.x == 0) Place<G, kSweep>::prepare(args, part), events.prepare();
  __syncthreads();
  const int group = group_of_thread();
  if (group < kKeepers) {
    leave_registers<kFeederRegisters>();
    feed_sum<G, kSweep>(args, events);
  } else {
    take_registers<kKeeperRegisters>();
    StateKeeper<G, kSweep>{.panel = group - kKeepers}.run_sum(args, events);
  }
}

/// The keepers' part of a walk.
template <typename G, Sweep kSweep>
__device__ __forceinline__ void keep_state(const SweepArgs& args) {
  const Events<Memory<G, kSweep>> events;
  StateKeeper<G, kSweep>{.panel = group_of_thread()}.run(args, events);
}
/// The rows' part.
template <typename G, Sweep kSweep>
__device__ __forceinline__ void walk_rows(const SweepArgs& args) {
  const Events<Memory<G, kSweep>> events;
  Rows<G, kSweep> rows(args, events);
  const typename Rows<G, kSweep>::Band band(args);
  if constexpr (kSweep == Sweep::kForward) {
    rows.walk([&] { forward_rows<G>(rows, band); });
  } else if constexpr (kSweep == Sweep::kKeys) {
    rows.walk([&] { key_rows<G>(rows, band); });
  } else if constexpr (kSweep == Sweep::kValues) {
    rows.walk([&] { value_rows<G>(rows, band); });
  } else {
    float by_weight[G::kFields];
#pragma unroll
    for (int field = 0; field < G::kFields; ++field) by_weight[field] = 0.f;
    rows.walk([&] { query_rows<G>(rows, band, by_weight); });
    if (args.weight_sums) store_weight_sums<G>(by_weight, rows);
    if (args.progress) finish_queries(rows);
  }
}

/// A thread block's walk, or piece of one.
template <typename G, Sweep kSweep>
__device__ __forceinline__ void walk(const SweepArgs& args, const Part& part) {
  if (threadIdx.x == 0) {
    Place<G, kSweep>::prepare(args, part);
    Events<Memory<G, kSweep>>().prepare();
  }
  __syncthreads();
  if (group_of_thread() < kKeepers) {
    leave_registers<kKeeperRegisters>();
    keep_state<G, kSweep>(args);
  } else {
    take_registers<kRowsRegisters>();
    walk_rows<G, kSweep>(args);
  }
}
template <typename G>
__global__ void __launch_bounds__(kSweepThreads, 1)
    forward_kernel(const __grid_constant__ SweepArgs args) {
  walk<G, Sweep::kForward>(
      args, {.pair = int(blockIdx.x / args.segments), .segment = int(blockIdx.x % args.segments)});
}

/// Of backward, the rounds from `first` on; a round has a thread block for every segment of every
/// pair: first the queries' sweep, last or before the last third of the values' pieces the keys',
/// which reads what the queries' left.
///
/// For sequences that are not cut (args.progress), one launch has all rounds. What a block waits
/// for then is the work of one with a lower number, which began before it. So fewer pairs than
/// multiprocessors fill a GPU without sums of states: of 96 pairs, 96 blocks have queries and then
/// keys, while the 36 multiprocessors left go through the values' pieces in about the same time.
template <typename G>
__global__ void __launch_bounds__(kSweepThreads, 1)
    backward_kernel(const __grid_constant__ SweepArgs args, int first) {
  const int blocks = int(args.batch) * args.heads * args.segments;
  const int round = first + blockIdx.x / blocks, index = blockIdx.x % blocks;
  const int keys_round = 1 + args.value_pieces * 2 / 3;
  const Part part{.pair = index / args.segments, .segment = index % args.segments};
  if (round == 0) {
    walk<G, Sweep::kQueries>(args, part);
  } else if (round == keys_round) {
    walk<G, Sweep::kKeys>(args, part);
  } else {
    walk<G, Sweep::kValues>(args, {.pair = part.pair,
                                   .segment = part.segment,
                                   .piece = round - (round < keys_round ? 1 : 2),
                                   .pieces = args.value_pieces});
  }
}

}  // namespace fmmformer::cuda::warpgroups
