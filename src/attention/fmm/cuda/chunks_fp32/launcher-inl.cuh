// SPDX-License-Identifier: Apache-2.0
// The definitions of launcher.cuh, included where a Launcher is instantiated.
#pragma once

#include "attention/fmm/cuda/chunks_fp32/kernels.cuh"
#include "attention/fmm/cuda/chunks_fp32/launcher.cuh"
#include "attention/fmm/cuda/launch.cuh"

namespace fmmformer::cuda::chunks_fp32 {

/// The Shape of a sweep: whether slices share scores. Three maps leave no room for it, and the key
/// sweep of two has too few registers.
template <int kDim, int kMaps, Sweep kSweep>
using ShapeOf = Shape<kDim, kMaps, kMaps == 1 || (kMaps == 2 && kSweep != Sweep::kKeys)>;

/// Calls body(Shape) for the pass's number of maps.
template <int kDim, Sweep kSweep, typename Body>
cudaError_t with_shape(const SweepArgs& args, const Body& body) {
  if constexpr (PassShape<kDim>::kMaps > 1) {
    if (args.maps == 3) return body(ShapeOf<kDim, 3, kSweep>());
    if (args.maps == 2) return body(ShapeOf<kDim, 2, kSweep>());
  }
  return body(ShapeOf<kDim, 1, kSweep>());
}
template <int kDim, Sweep kSweep, typename KernelOf>
cudaError_t launch(const SweepArgs& args, cudaStream_t stream, const KernelOf& kernel_of) {
  const int64_t blocks = args.batch * args.heads * args.segments;
  return with_shape<kDim, kSweep>(args, [&](auto shape) {
    using G = decltype(shape);
    constexpr int kBytes = Memory<G, kSweep>::kBytes;
    static_assert(kBytes <= PassShape<kDim>::kSharedBytes);
    return launch_kernel(kernel_of(shape), dim3(static_cast<unsigned>(blocks)), kThreads, kBytes,
                         stream, args);
  });
}

template <int kDim>
cudaError_t Launcher<kDim>::sum_states(const SweepArgs& args, bool of_queries,
                                       cudaStream_t stream) {
  if (of_queries) {
    return launch<kDim, Sweep::kSumOfQueries>(
        args, stream, [](auto shape) { return sum_kernel<decltype(shape), true>; });
  }
  return launch<kDim, Sweep::kSumOfKeys>(
      args, stream, [](auto shape) { return sum_kernel<decltype(shape), false>; });
}
template <int kDim>
cudaError_t Launcher<kDim>::forward_sweep(const SweepArgs& args, cudaStream_t stream) {
  return launch<kDim, Sweep::kForward>(args, stream,
                                       [](auto shape) { return forward_kernel<decltype(shape)>; });
}
template <int kDim>
cudaError_t Launcher<kDim>::query_sweep(const SweepArgs& args, cudaStream_t stream) {
  return launch<kDim, Sweep::kQueries>(args, stream,
                                       [](auto shape) { return query_kernel<decltype(shape)>; });
}
template <int kDim>
cudaError_t Launcher<kDim>::key_sweep(const SweepArgs& args, cudaStream_t stream) {
  return launch<kDim, Sweep::kKeys>(args, stream,
                                    [](auto shape) { return key_kernel<decltype(shape)>; });
}

}  // namespace fmmformer::cuda::chunks_fp32
