// SPDX-License-Identifier: Apache-2.0
// The definitions of launcher.cuh, included where a Launcher is instantiated.
#pragma once

#include "attention/fmm/cuda/kernels.cuh"
#include "attention/fmm/cuda/launch.cuh"
#include "attention/fmm/cuda/launcher.cuh"

namespace fmmformer::cuda {

template <typename G, typename Kernel>
cudaError_t launch(Kernel* kernel, const SweepArgs& args, int own_count, bool backward,
                   cudaStream_t stream) {
  const int64_t blocks = args.batch * args.heads * args.segments;
  const int64_t bytes = SharedMemory<G>(args, nullptr, own_count, backward).bytes;
  return launch_kernel(kernel, dim3(static_cast<unsigned>(blocks)), G::kThreads, bytes, stream,
                       args);
}

template <typename Math, int kKeyDim, typename Shape = PassShape<Math, kKeyDim>>
using PassGeometry = Geometry<Math, kKeyDim, Shape::kValueDim, Shape::kMaps, Shape::kWarps>;

template <typename Math, int kKeyDim>
int64_t Launcher<Math, kKeyDim>::shared_bytes(const SweepArgs& args) {
  using G = PassGeometry<Math, kKeyDim>;
  return SharedMemory<G>(args, nullptr, /*own_count=*/2, /*backward=*/true).bytes;
}
template <typename Math, int kKeyDim>
cudaError_t Launcher<Math, kKeyDim>::sum_states(const SweepArgs& args, bool of_queries,
                                                cudaStream_t stream) {
  using G = PassGeometry<Math, kKeyDim>;
  return of_queries ? launch<G>(sum_kernel<G, true>, args, 0, true, stream)
                    : launch<G>(sum_kernel<G, false>, args, 0, true, stream);
}
template <typename Math, int kKeyDim>
cudaError_t Launcher<Math, kKeyDim>::forward_sweep(const SweepArgs& args, cudaStream_t stream) {
  using G = PassGeometry<Math, kKeyDim>;
  return launch<G>(forward_kernel<G>, args, 1, false, stream);
}
template <typename Math, int kKeyDim>
cudaError_t Launcher<Math, kKeyDim>::query_sweep(const SweepArgs& args, cudaStream_t stream) {
  using G = PassGeometry<Math, kKeyDim>;
  return launch<G>(query_kernel<G>, args, 2, true, stream);
}
template <typename Math, int kKeyDim>
cudaError_t Launcher<Math, kKeyDim>::key_sweep(const SweepArgs& args, cudaStream_t stream) {
  using G = PassGeometry<Math, kKeyDim>;
  return launch<G>(key_kernel<G>, args, 2, true, stream);
}

}  // namespace fmmformer::cuda
