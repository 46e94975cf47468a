// SPDX-License-Identifier: Apache-2.0
// The definitions of launcher.cuh, included where a Launcher is instantiated.
#pragma once

#include "attention/fmm/cuda/chunks_fp32/kernels.cuh"
#include "attention/fmm/cuda/chunks_fp32/launcher.cuh"
#include "attention/fmm/cuda/launch.cuh"

namespace fmmformer::cuda::chunks_fp32 {

template <typename G, Sweep kSweep, typename Kernel>
cudaError_t launch(Kernel* kernel, const SweepArgs& args, cudaStream_t stream) {
  const int64_t blocks = args.batch * args.heads * args.segments;
  constexpr int kBytes = Memory<G, kSweep>::kBytes;
  static_assert(kBytes <= PassShape<G::kDim>::kSharedBytes);
  return launch_kernel(kernel, dim3(static_cast<unsigned>(blocks)), kThreads, kBytes, stream, args);
}

/// Calls body(Shape) for the pass's number of maps.
template <int kDim, typename Body>
cudaError_t with_shape(const SweepArgs& args, const Body& body) {
  if constexpr (PassShape<kDim>::kMaps > 1) {
    if (args.maps == 3) return body(Shape<kDim, 3>());
    if (args.maps == 2) return body(Shape<kDim, 2>());
  }
  return body(Shape<kDim, 1>());
}

template <int kDim>
cudaError_t Launcher<kDim>::sum_states(const SweepArgs& args, bool of_queries,
                                       cudaStream_t stream) {
  return with_shape<kDim>(args, [&](auto shape) {
    using G = decltype(shape);
    return of_queries ? launch<G, Sweep::kSumOfQueries>(sum_kernel<G, true>, args, stream)
                      : launch<G, Sweep::kSumOfKeys>(sum_kernel<G, false>, args, stream);
  });
}
template <int kDim>
cudaError_t Launcher<kDim>::forward_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_shape<kDim>(args, [&](auto shape) {
    using G = decltype(shape);
    return launch<G, Sweep::kForward>(forward_kernel<G>, args, stream);
  });
}
template <int kDim>
cudaError_t Launcher<kDim>::query_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_shape<kDim>(args, [&](auto shape) {
    using G = decltype(shape);
    return launch<G, Sweep::kQueries>(query_kernel<G>, args, stream);
  });
}
template <int kDim>
cudaError_t Launcher<kDim>::key_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_shape<kDim>(args, [&](auto shape) {
    using G = decltype(shape);
    return launch<G, Sweep::kKeys>(key_kernel<G>, args, stream);
  });
}

}  // namespace fmmformer::cuda::chunks_fp32
