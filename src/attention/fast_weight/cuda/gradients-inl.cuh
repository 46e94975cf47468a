// SPDX-License-Identifier: Apache-2.0
// The definitions of GradientLauncher, included where one is instantiated.
#pragma once

#include <algorithm>

#include "attention/fast_weight/cuda/key_walk.cuh"
#include "attention/fast_weight/cuda/launcher.cuh"
#include "attention/fast_weight/cuda/query_walk.cuh"

namespace fmmformer::cuda::fast_weight {

template <typename Math, int kDim, bool kOfKeys>
__global__ void __launch_bounds__(GradientLauncher<Math, kDim>::kMaxThreads)
    gradient_kernel(const __grid_constant__ SweepArgs args, int group) {
  const Place place(args, blockIdx.x);
  if constexpr (kOfKeys) {
    walk_keys<Math, kDim>(args, place, group);
  } else {
    walk_queries<Math, kDim>(args, place, group);
  }
}

template <typename Math, int kDim, bool kOfKeys>
cudaError_t launch_gradient(const SweepArgs& args, const Limits& limits, cudaStream_t stream) {
  constexpr int kResults = kOfKeys ? 1 : 2;
  const int group =
      group_that_fits(limits, [&](int chunks) { return gradient_bytes(args, chunks, kResults); });
  const int warps = std::max(by_sixteen(args.head_dim) / 16, group);
  return launch(gradient_kernel<Math, kDim, kOfKeys>, args, group,
                gradient_bytes(args, group, kResults),
                dim3(static_cast<unsigned>(args.batch * args.heads * args.segments)),
                warps * kWarpSize, stream);
}

template <typename Math, int kDim>
cudaError_t GradientLauncher<Math, kDim>::query_sweep(const SweepArgs& args, const Limits& limits,
                                                      cudaStream_t stream) {
  return launch_gradient<Math, kDim, false>(args, limits, stream);
}
template <typename Math, int kDim>
cudaError_t GradientLauncher<Math, kDim>::key_sweep(const SweepArgs& args, const Limits& limits,
                                                    cudaStream_t stream) {
  return launch_gradient<Math, kDim, true>(args, limits, stream);
}

}  // namespace fmmformer::cuda::fast_weight
