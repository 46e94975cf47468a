// SPDX-License-Identifier: Apache-2.0
// The walk as a kernel: dq, dk, dv and the sums for weights' gradients.
#pragma once

#include "attention/fmm/cuda/launch.cuh"
#include "attention/fmm/cuda/narrow/both_sides/keys.cuh"
#include "attention/fmm/cuda/narrow/both_sides/queries.cuh"
#include "attention/fmm/cuda/narrow/weight_sums.cuh"

namespace fmmformer::cuda::narrow::both_sides {

/// Begins to load what the walk begins with. By a lane of each warp.
template <typename G>
__device__ __forceinline__ void begin_loads(const Walk<G>& at, const RowMaps& maps) {
  if (at.of_keys) {
    if (at.warp == 0) copy_event<G>(kKeyRows).expect(4 * kChunkBytes);
    const int before = at.warp / 2;
    begin_key_rows(at, maps, at.b, at.chunk - before, -before);
  } else {
    const unsigned char* entry = at.entry(at.chunk);
    begin_query_rows(at, maps, at.b, at.chunk, entry, 0);
    begin_far_entry<G>(at.warp, entry, at.chunk);
  }
}
template <typename G>
__global__ void __launch_bounds__(kBlockThreads, kGradientBlocksAtOnce)
    gradient_kernel(const __grid_constant__ SweepArgs args, const __grid_constant__ RowMaps maps) {
  Walk<G> at(args);
  if (at.b >= args.batch) return;
  if (threadIdx.x == 0) {
#pragma unroll
    for (int event : {kKeyRows, kQueryRows, kFarEntry}) copy_event<G>(event).init();
  }
  __syncthreads();
  if (at.lane == 0) begin_loads(at, maps);
  let_next_begin();  // the reduction of weights' sums
  // While rows are on their way:
  const float weight = at.own_weight();
  at.find_live();
  fill_operands_of_ones<G>();
  if (args.has_near) Band<G>::fill(args);
  if (!at.of_keys && at.is_last()) clear_state_before(at);
  at.keep_weight(weight);
  show_to_warpgroup();
  __syncthreads();
  copy_event<G>(kKeyRows).wait(0);
  if (at.of_keys)
    clear_dead_keys(at, at.chunk, 0), clear_dead_keys(at, at.chunk - 1, -1);
  else
    finish_query_rows(at);
  __syncthreads();
  if (at.of_keys)
    walk_keys(at, maps);
  else
    walk_queries(at, maps);
  __syncthreads();
  at.pair = Sequence<G>(args).pair;
  if (args.weight_sums) store_weight_sums(at, shared_at<float>(G::kWeightSums));
}

}  // namespace fmmformer::cuda::narrow::both_sides
