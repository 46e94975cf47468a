// SPDX-License-Identifier: Apache-2.0
// The definitions of WalkLauncher, included where one is instantiated.
#pragma once

#include "attention/fast_weight/cuda/launcher.cuh"
#include "attention/fast_weight/cuda/walks.cuh"

namespace fmmformer::cuda::fast_weight {

template <typename Math, int kDim, Walk kWalk, bool kBackwards>
__global__ void __launch_bounds__(kGroup* kWarpSize)
    walk_kernel(const __grid_constant__ SweepArgs args, int group) {
  const Place place(args, blockIdx.x);
  const Channels channels(args, static_cast<int>(blockIdx.y));
  if constexpr (kBackwards) {
    walk_backwards<Math, kWalk, kDim>(args, place, channels, group);
  } else {
    walk_forwards<Math, kWalk, kDim>(args, place, channels, group);
  }
}

template <typename Math, int kDim, Walk kWalk, bool kBackwards>
cudaError_t launch_walk(const SweepArgs& args, const Limits& limits, cudaStream_t stream) {
  static_assert(kGroup * 16 >= kValueBlock);
  const int group =
      group_that_fits(limits, [&](int chunks) { return group_bytes(args, chunks, kBackwards); });
  const auto blocks_of = [](int channels) { return (channels + kValueBlock - 1) / kValueBlock; };
  const int parts =
      blocks_of(args.value_dim) + (kWalk == Walk::kTransition ? blocks_of(args.head_dim) : 0);
  const dim3 blocks(static_cast<unsigned>(args.batch * args.heads * args.segments), parts);
  return launch(walk_kernel<Math, kDim, kWalk, kBackwards>, args, group,
                group_bytes(args, group, kBackwards), blocks, kGroup * kWarpSize, stream);
}

template <typename Math, int kDim>
cudaError_t WalkLauncher<Math, kDim>::forward_sweep(const SweepArgs& args, const Limits& limits,
                                                    cudaStream_t stream) {
  return launch_walk<Math, kDim, Walk::kOutput, false>(args, limits, stream);
}
template <typename Math, int kDim>
cudaError_t WalkLauncher<Math, kDim>::write_sweep(const SweepArgs& args, const Limits& limits,
                                                  cudaStream_t stream) {
  return launch_walk<Math, kDim, Walk::kWritten, false>(args, limits, stream);
}
template <typename Math, int kDim>
cudaError_t WalkLauncher<Math, kDim>::solve_sweep(const SweepArgs& args, const Limits& limits,
                                                  cudaStream_t stream) {
  return launch_walk<Math, kDim, Walk::kSolved, true>(args, limits, stream);
}
template <typename Math, int kDim>
cudaError_t WalkLauncher<Math, kDim>::transition_sweep(const SweepArgs& args, bool of_gradients,
                                                       const Limits& limits, cudaStream_t stream) {
  return of_gradients ? launch_walk<Math, kDim, Walk::kTransition, true>(args, limits, stream)
                      : launch_walk<Math, kDim, Walk::kTransition, false>(args, limits, stream);
}

}  // namespace fmmformer::cuda::fast_weight
