// SPDX-License-Identifier: Apache-2.0
// The definitions of launcher.cuh, included where a Launcher is instantiated.
#pragma once

#include "attention/fmm/cuda/launch.cuh"
#include "attention/fmm/cuda/whole/kernels.cuh"

namespace fmmformer::cuda::whole {

template <typename G, typename Kernel>
cudaError_t launch(Kernel* kernel, const SweepArgs& args, cudaStream_t stream) {
  const int64_t batch = args.length == 0 || args.heads == 0 ? 0 : args.batch;
  const int warps = (args.length + kTokens - 1) / kTokens;
  return launch_kernel(kernel, dim3(static_cast<unsigned>(batch), args.heads), warps * kWarpSize,
                       G::kWarps + warps * G::kWarpBytes, stream, args);
}

/// Calls body(Shape) for the number of maps.
template <int kDim, bool kPlain, bool kUnit, bool kBackward, typename Body>
cudaError_t with_maps(const SweepArgs& args, const Body& body) {
  if (args.maps == 1) return body(Packed<kDim, 1, kPlain, kUnit, kBackward>());
  if (args.maps == 2) return body(Packed<kDim, 2, kPlain, kUnit, kBackward>());
  return body(Packed<kDim, 3, kPlain, kUnit, kBackward>());
}
template <int kDim, bool kBackward, typename Body>
cudaError_t with_shape(const SweepArgs& args, const Body& body) {
  if (args.unit_features) return with_maps<kDim, false, true, kBackward>(args, body);
  const bool plain = args.drop_below == 0 && args.uniform_weights;
  return plain ? with_maps<kDim, true, false, kBackward>(args, body)
               : with_maps<kDim, false, false, kBackward>(args, body);
}

template <int kDim>
cudaError_t Launcher<kDim>::forward_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_shape<kDim, /*kBackward=*/false>(args, [&](auto shape) {
    using G = decltype(shape);
    return launch<G>(forward_kernel<G>, args, stream);
  });
}
template <int kDim>
cudaError_t Launcher<kDim>::query_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_shape<kDim, /*kBackward=*/true>(args, [&](auto shape) {
    using G = decltype(shape);
    return launch<G>(backward_kernel<G>, args, stream);
  });
}

}  // namespace fmmformer::cuda::whole
