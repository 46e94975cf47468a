// SPDX-License-Identifier: Apache-2.0
// The definitions of launcher.cuh, included where a Launcher is instantiated.
#pragma once

#include "attention/fmm/cuda/kernels.cuh"
#include "attention/fmm/cuda/launcher.cuh"

namespace fmmformer::cuda {

template <typename G, typename Kernel>
cudaError_t launch(Kernel* kernel, const SweepArgs& args, int own_count, bool backward,
                   cudaStream_t stream) {
  const int64_t blocks = args.batch * args.heads * args.segments;
  if (blocks == 0) return cudaSuccess;
  const int64_t bytes = SharedMemory<G>(args, nullptr, own_count, backward).bytes;
  // Every time: the attribute belongs to the device, and there may be several. It costs less than a
  // microsecond.
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error != cudaSuccess) return error;
  kernel<<<static_cast<unsigned>(blocks), G::kThreads, bytes, stream>>>(args);
  return cudaGetLastError();
}

/// Calls body(Geometry of args.maps feature maps).
template <typename Math, int kKeyDim, typename Body>
cudaError_t with_geometry(const SweepArgs& args, const Body& body) {
  using Shape = PassShape<Math, kKeyDim>;
  if constexpr (Shape::kMaps >= 3) {
    if (args.maps == 3) return body(Geometry<Math, kKeyDim, Shape::kValueDim, 3, Shape::kWarps>());
  }
  if constexpr (Shape::kMaps >= 2) {
    if (args.maps == 2) return body(Geometry<Math, kKeyDim, Shape::kValueDim, 2, Shape::kWarps>());
  }
  // One state leaves so many registers free that shorter chunks, with less work inside them, are
  // faster.
  constexpr int kWarps = kKeyDim == 64 ? 4 : Shape::kWarps;
  return body(Geometry<Math, kKeyDim, Shape::kValueDim, 1, kWarps>());
}

template <typename Math, int kKeyDim>
cudaError_t Launcher<Math, kKeyDim>::sum_states(const SweepArgs& args, bool of_queries,
                                                cudaStream_t stream) {
  return with_geometry<Math, kKeyDim>(args, [&](auto geometry) {
    using G = decltype(geometry);
    return of_queries ? launch<G>(sum_kernel<G, true>, args, 0, true, stream)
                      : launch<G>(sum_kernel<G, false>, args, 0, true, stream);
  });
}
template <typename Math, int kKeyDim>
cudaError_t Launcher<Math, kKeyDim>::forward_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_geometry<Math, kKeyDim>(args, [&](auto geometry) {
    using G = decltype(geometry);
    return launch<G>(forward_kernel<G>, args, 1, false, stream);
  });
}
template <typename Math, int kKeyDim>
cudaError_t Launcher<Math, kKeyDim>::query_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_geometry<Math, kKeyDim>(args, [&](auto geometry) {
    using G = decltype(geometry);
    return launch<G>(query_kernel<G>, args, 2, true, stream);
  });
}
template <typename Math, int kKeyDim>
cudaError_t Launcher<Math, kKeyDim>::key_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_geometry<Math, kKeyDim>(args, [&](auto geometry) {
    using G = decltype(geometry);
    return launch<G>(key_kernel<G>, args, 2, true, stream);
  });
}

}  // namespace fmmformer::cuda
