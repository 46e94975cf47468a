// SPDX-License-Identifier: Apache-2.0
// The definitions of launcher.cuh, included where a Launcher is instantiated.
#pragma once

#include "attention/fmm/cuda/launch.cuh"
#include "attention/fmm/cuda/warpgroups/kernels.cuh"
#include "attention/fmm/cuda/warpgroups/launcher.cuh"

namespace fmmformer::cuda::warpgroups {

template <typename G, Sweep kSweep, typename Kernel>
cudaError_t launch(Kernel* kernel, const SweepArgs& args, cudaStream_t stream) {
  using M = Memory<G, kSweep>;
  static_assert(M::kBytes <= PassShape<G::kDim>::kSharedBytes);
  const int64_t blocks = args.batch * args.heads * args.segments;
  return launch_kernel(kernel, dim3(static_cast<unsigned>(blocks)), M::kThreads, M::kBytes, stream,
                       args);
}

template <typename Body>
cudaError_t with_maps(const SweepArgs& args, const Body& body) {
  return args.maps == 1 ? body(Shape<1>()) : body(Shape<2>());
}

template <int kDim>
cudaError_t Launcher<kDim>::sum_states(const SweepArgs& args, bool of_queries,
                                       cudaStream_t stream) {
  return with_maps(args, [&](auto shape) {
    using G = decltype(shape);
    constexpr Sweep kKeys = Sweep::kSumOfKeys, kQueries = Sweep::kSumOfQueries;
    return of_queries ? launch<G, kQueries>(sum_kernel<G, kQueries>, args, stream)
                      : launch<G, kKeys>(sum_kernel<G, kKeys>, args, stream);
  });
}
template <int kDim>
cudaError_t Launcher<kDim>::forward_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_maps(args, [&](auto shape) {
    using G = decltype(shape);
    return launch<G, Sweep::kForward>(forward_kernel<G>, args, stream);
  });
}
template <int kDim>
cudaError_t Launcher<kDim>::query_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_maps(args, [&](auto shape) {
    using G = decltype(shape);
    return launch<G, Sweep::kQueries>(query_kernel<G>, args, stream);
  });
}
template <int kDim>
cudaError_t Launcher<kDim>::key_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_maps(args, [&](auto shape) {
    using G = decltype(shape);
    const cudaError_t error = launch<G, Sweep::kKeys>(key_kernel<G>, args, stream);
    if (error != cudaSuccess) return error;
    return launch<G, Sweep::kValues>(value_kernel<G>, args, stream);
  });
}

}  // namespace fmmformer::cuda::warpgroups
