// SPDX-License-Identifier: Apache-2.0
// The walk as a kernel: dq, dk, dv and the sums for weights' gradients.
#pragma once

#include "attention/fmm/cuda/narrow/both_sides/keys.cuh"
#include "attention/fmm/cuda/narrow/both_sides/queries.cuh"

namespace fmmformer::cuda::narrow::both_sides {

template <typename G>
__global__ void __launch_bounds__(kBlockThreads, kBlocksOfSm)
    gradient_kernel(const __grid_constant__ SweepArgs args) {
  Sequence<G> at(args);
  const bool of_keys = at.warp >= kWarps;
  at.warp %= kWarps;
  at.begin_at(at.chunks - 1);
  at.find_live();
  at.find_bases();
  __syncthreads();
  if (of_keys)
    begin_keys(at);
  else
    begin_queries(at);
  // While rows are on their way:
  at.load_weights();
  if (threadIdx.x < G::kMaps * kDim) at.sums(G::kMaps)[threadIdx.x] = 0.f;  // of either parity
  if (args.has_near) Band<G>::fill(args);
  clear_later_tiles(at);
  wait_for_copies();
  show_to_warpgroup();
  __syncthreads();
  if (of_keys)
    walk_keys(at);
  else
    walk_queries(at);
  __syncthreads();
  if (args.weight_sums) store_weight_sums(at, shared_at<float>(G::kWeightSums));
}

}  // namespace fmmformer::cuda::narrow::both_sides
