// SPDX-License-Identifier: Apache-2.0
// The definitions of WalkLauncher, included where one is instantiated.
#pragma once

#include "attention/fast_weight/cuda/backward_walk.cuh"
#include "attention/fast_weight/cuda/forward_walk.cuh"
#include "attention/fast_weight/cuda/launcher.cuh"

namespace fmmformer::cuda::fast_weight {

/// Four warps; as many walk, and prepare a chunk together, as there are sixteens of channels.
template <int kDim, int kValues = kDim<64 ? kDim : 64> using WalkShape =
                        Shape<kDim, kValues, kValues / 16, 4>;

template <typename Math, typename S, Walk kWalk, bool kBackwards, bool kPlain>
__global__ void __launch_bounds__(S::kThreads)
    walk_kernel(const __grid_constant__ SweepArgs given) {
  const SweepArgs args = known_args<S, kPlain>(given);
  const Place place(args, blockIdx.x);
  const Channels<S> channels(args, static_cast<int>(blockIdx.y));
  if constexpr (kBackwards) {
    walk_backwards<Math, kWalk, S>(args, place, channels);
  } else {
    walk_forwards<Math, kWalk, S>(args, place, channels);
  }
}

template <typename Math, int kDim, Walk kWalk, bool kBackwards>
cudaError_t launch_walk(const SweepArgs& args, cudaStream_t stream) {
  using S = WalkShape<kDim>;
  const int parts = Channels<S>::blocks(args.value_dim) +
                    (kWalk == Walk::kTransition ? Channels<S>::blocks(args.head_dim) : 0);
  const dim3 blocks(static_cast<unsigned>(args.batch * args.heads * args.segments), parts);
  constexpr int kBytes = GroupTiles<S, kBackwards>::kBytes;
  if constexpr (kHasPlain<Math, kDim>) {
    if (is_plain<S>(args))
      return launch_kernel(walk_kernel<Math, S, kWalk, kBackwards, true>, blocks, S::kThreads,
                           kBytes, stream, args);
  }
  return launch_kernel(walk_kernel<Math, S, kWalk, kBackwards, false>, blocks, S::kThreads, kBytes,
                       stream, args);
}

template <typename Math, int kDim>
cudaError_t WalkLauncher<Math, kDim>::forward_sweep(const SweepArgs& args, cudaStream_t stream) {
  return launch_walk<Math, kDim, Walk::kOutput, false>(args, stream);
}
template <typename Math, int kDim>
cudaError_t WalkLauncher<Math, kDim>::write_sweep(const SweepArgs& args, cudaStream_t stream) {
  return launch_walk<Math, kDim, Walk::kWritten, false>(args, stream);
}
template <typename Math, int kDim>
cudaError_t WalkLauncher<Math, kDim>::solve_sweep(const SweepArgs& args, cudaStream_t stream) {
  return launch_walk<Math, kDim, Walk::kSolved, true>(args, stream);
}
template <typename Math, int kDim>
cudaError_t WalkLauncher<Math, kDim>::transition_sweep(const SweepArgs& args, bool of_gradients,
                                                       cudaStream_t stream) {
  return of_gradients ? launch_walk<Math, kDim, Walk::kTransition, true>(args, stream)
                      : launch_walk<Math, kDim, Walk::kTransition, false>(args, stream);
}

}  // namespace fmmformer::cuda::fast_weight
