// SPDX-License-Identifier: Apache-2.0
// The walk as a kernel: dq, dk, dv and the sums for weights' gradients.
#pragma once

#include "attention/fmm/cuda/narrow/both_sides/keys.cuh"
#include "attention/fmm/cuda/narrow/both_sides/queries.cuh"
#include "attention/fmm/cuda/narrow/weight_sums.cuh"

namespace fmmformer::cuda::narrow::both_sides {

/// Begins to load what the walk begins with. By one thread.
template <typename G>
__device__ __forceinline__ void begin_loads(const Sequence<G>& at, const RowMaps& maps) {
#pragma unroll
  for (int event : {kKeyRows, kQueryRows, kFarEntry}) copy_event<G>(event).init();
  copy_event<G>(kKeyRows).expect(4 * kChunkBytes);
  begin_query_rows(at, maps, 0);
  begin_key_rows(at, maps, 0), begin_key_rows(at, maps, -1);
  begin_far_entry(at, at.chunk);
}
template <typename G>
__global__ void __launch_bounds__(kBlockThreads, kBlocksOfSm)
    gradient_kernel(const __grid_constant__ SweepArgs args, const __grid_constant__ RowMaps maps) {
  Sequence<G> at(args);
  const bool of_keys = at.warp >= kWarps;
  at.warp %= kWarps;
  at.begin_at(at.chunks - 1);
  if (threadIdx.x == 0) begin_loads(at, maps);
  // While rows are on their way:
  at.load_weights();
  at.find_live();
  if (threadIdx.x < G::kMaps * kDim) at.sums(G::kMaps)[threadIdx.x] = 0.f;  // of either parity
  if (args.has_near) Band<G>::fill(args);
  clear_later_tiles(at);
  if (!of_keys && at.chunk == 0) clear_state_before<G>();
  show_to_warpgroup();
  __syncthreads();
  copy_event<G>(kKeyRows).wait(0);
  if (of_keys)
    clear_dead_keys(at, 0), clear_dead_keys(at, -1);
  else
    finish_query_rows(at);
  __syncthreads();
  if (of_keys)
    walk_keys(at, maps);
  else
    walk_queries(at, maps);
  __syncthreads();
  if (args.weight_sums) store_weight_sums(at, shared_at<float>(G::kWeightSums));
}

}  // namespace fmmformer::cuda::narrow::both_sides
