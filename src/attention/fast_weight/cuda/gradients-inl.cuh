// SPDX-License-Identifier: Apache-2.0
// The definitions of GradientLauncher, included where one is instantiated.
#pragma once

#include "attention/fast_weight/cuda/key_walk.cuh"
#include "attention/fast_weight/cuda/launcher.cuh"
#include "attention/fast_weight/cuda/query_walk.cuh"

namespace fmmformer::cuda::fast_weight {

template <typename Math, typename S, bool kOfKeys, bool kPlain>
__global__ void __launch_bounds__(S::kThreads)
    gradient_kernel(const __grid_constant__ SweepArgs given) {
  const SweepArgs args = known_args<S, kPlain>(given);
  const Place place(args, blockIdx.x);
  if constexpr (kOfKeys) {
    walk_keys<Math, S>(args, place);
  } else {
    walk_queries<Math, S>(args, place);
  }
}

template <typename Math, int kDim, bool kOfKeys>
cudaError_t launch_gradient(const SweepArgs& args, cudaStream_t stream) {
  using S = GradientShape<kDim>;
  const dim3 blocks(static_cast<unsigned>(args.batch * args.heads * args.segments));
  constexpr int kBytes = GradientGroup < S, kOfKeys ? 1 : 2 > ::kBytes;
  if constexpr (kHasPlain<Math, kDim>) {
    if (is_plain<S>(args))
      return launch_kernel(gradient_kernel<Math, S, kOfKeys, true>, blocks, S::kThreads, kBytes,
                           stream, args);
  }
  return launch_kernel(gradient_kernel<Math, S, kOfKeys, false>, blocks, S::kThreads, kBytes,
                       stream, args);
}

template <typename Math, int kDim>
cudaError_t GradientLauncher<Math, kDim>::query_sweep(const SweepArgs& args, cudaStream_t stream) {
  return launch_gradient<Math, kDim, false>(args, stream);
}
template <typename Math, int kDim>
cudaError_t GradientLauncher<Math, kDim>::key_sweep(const SweepArgs& args, cudaStream_t stream) {
  return launch_gradient<Math, kDim, true>(args, stream);
}

}  // namespace fmmformer::cuda::fast_weight
