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

template <typename G, Sweep kSweep>
__global__ void __launch_bounds__(Memory<G, kSweep>::kThreads, 1)
    sum_kernel(const __grid_constant__ SweepArgs args) {
  using M = Memory<G, kSweep>;
  if (is_of_no_use(args, blockIdx.x % args.segments, M::kOfQueries)) return;
  const Events<M> events;
  if (threadIdx.x == 0) Place<G, kSweep>::prepare(args), events.prepare();
  __syncthreads();
  const int group = __shfl_sync(~0u, threadIdx.x / kGroupThreads, 0);
  if (group < kKeepers) {
    leave_registers<kFeederRegisters>();
    feed_sum<G, kSweep>(args, events);
  } else {
    take_registers<kKeeperRegisters>();
    StateKeeper<G, kSweep>{.panel = group - kKeepers}.run_sum(args, events);
  }
}

/// work(Rows): the rows' part.
template <typename G, Sweep kSweep, typename Work>
__device__ __forceinline__ void sweep(const SweepArgs& args, const Work& work) {
  using M = Memory<G, kSweep>;
  const Events<M> events;
  if (threadIdx.x == 0) Place<G, kSweep>::prepare(args), events.prepare();
  __syncthreads();
  const int group = __shfl_sync(~0u, threadIdx.x / kGroupThreads, 0);
  if (group < kKeepers) {
    leave_registers<kKeeperRegisters>();
    StateKeeper<G, kSweep>{.panel = group}.run(args, events);
  } else {
    take_registers<kRowsRegisters>();
    Rows<G, kSweep> rows(args, events);
    work(rows);
  }
}

template <typename G>
__global__ void __launch_bounds__(Memory<G, Sweep::kForward>::kThreads, 1)
    forward_kernel(const __grid_constant__ SweepArgs args) {
  sweep<G, Sweep::kForward>(args, [&](auto& rows) {
    const typename Rows<G, Sweep::kForward>::Band band(args);
    const chunks::Weights<G> weights(args, Place<G, Sweep::kForward>::numbers().h);
    rows.walk([&] { forward_rows<G>(rows, band, weights); });
  });
}

template <typename G>
__global__ void __launch_bounds__(Memory<G, Sweep::kQueries>::kThreads, 1)
    query_kernel(const __grid_constant__ SweepArgs args) {
  sweep<G, Sweep::kQueries>(args, [&](auto& rows) {
    const typename Rows<G, Sweep::kQueries>::Band band(args);
    const chunks::Weights<G> weights(args, Place<G, Sweep::kQueries>::numbers().h);
    float by_weight[G::kFields];
#pragma unroll
    for (int field = 0; field < G::kFields; ++field) by_weight[field] = 0.f;
    rows.walk([&] { query_rows<G>(rows, band, weights, by_weight); });
    if (args.weight_sums) store_weight_sums<G>(by_weight, rows);
  });
}

template <typename G>
__global__ void __launch_bounds__(Memory<G, Sweep::kKeys>::kThreads, 1)
    key_kernel(const __grid_constant__ SweepArgs args) {
  sweep<G, Sweep::kKeys>(args, [&](auto& rows) {
    const typename Rows<G, Sweep::kKeys>::Band band(args);
    const float weight = weight_value(args.near_weight, 0, Place<G, Sweep::kKeys>::numbers().h, 0);
    rows.walk([&] { key_rows<G>(rows, band, weight); });
  });
}

template <typename G>
__global__ void __launch_bounds__(Memory<G, Sweep::kValues>::kThreads, 1)
    value_kernel(const __grid_constant__ SweepArgs args) {
  sweep<G, Sweep::kValues>(args, [&](auto& rows) {
    const typename Rows<G, Sweep::kValues>::Band band(args);
    const float weight =
        weight_value(args.near_weight, 0, Place<G, Sweep::kValues>::numbers().h, 0);
    rows.walk([&] { value_rows<G>(rows, band, weight); });
  });
}

}  // namespace fmmformer::cuda::warpgroups
