// SPDX-License-Identifier: Apache-2.0
// The definitions of launcher.cuh, included where a Launcher is instantiated.
#pragma once

#include "attention/fmm/cuda/chunks/kernels.cuh"
#include "attention/fmm/cuda/chunks/launcher.cuh"
#include "attention/fmm/cuda/launch.cuh"

namespace fmmformer::cuda::chunks {

template <typename G, Sweep kSweep, typename Kernel>
cudaError_t launch(Kernel* kernel, const SweepArgs& args, cudaStream_t stream) {
  const int64_t blocks = args.batch * args.heads * args.segments;
  constexpr int kBytes = Memory<G, kSweep>::kBytes;
  static_assert(kBytes <= PassShape<G::kDim>::kSharedBytes);
  return launch_kernel(kernel, dim3(static_cast<unsigned>(blocks)), G::kThreads, kBytes, stream,
                       args);
}

/// Calls body(Shape) for the number of maps and channels. Three maps' features and states, beside
/// the own rows of two tensors, leave no room for padded rows.
template <int kDim, bool kDrops, bool kBackward, typename Body>
cudaError_t with_maps(const SweepArgs& args, const Body& body) {
  return with_fullness<kDim>(args, [&](auto full) {
    constexpr bool kFull = full;
    if constexpr (PassShape<kDim>::kMaps > 2) {
      if (args.maps == 3) return body(Shape<kDim, 3, kDrops, !kBackward, kFull>());
    }
    return args.maps == 1 ? body(Shape<kDim, 1, kDrops, true, kFull>())
                          : body(Shape<kDim, 2, kDrops, true, kFull>());
  });
}
template <int kDim, bool kBackward, typename Body>
cudaError_t with_shape(const SweepArgs& args, const Body& body) {
  return args.drop_below > 0 ? with_maps<kDim, true, kBackward>(args, body)
                             : with_maps<kDim, false, kBackward>(args, body);
}

template <int kDim>
cudaError_t Launcher<kDim>::sum_states(const SweepArgs& args, bool of_queries,
                                       cudaStream_t stream) {
  return with_maps<kDim, false, false>(args, [&](auto shape) {  // there is no near field here
    using G = decltype(shape);
    return of_queries ? launch<G, Sweep::kSumOfQueries>(sum_kernel<G, true>, args, stream)
                      : launch<G, Sweep::kSumOfKeys>(sum_kernel<G, false>, args, stream);
  });
}
template <int kDim>
cudaError_t Launcher<kDim>::forward_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_shape<kDim, false>(args, [&](auto shape) {
    using G = decltype(shape);
    return launch<G, Sweep::kForward>(forward_kernel<G>, args, stream);
  });
}
template <int kDim>
cudaError_t Launcher<kDim>::query_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_shape<kDim, true>(args, [&](auto shape) {
    using G = decltype(shape);
    return launch<G, Sweep::kQueries>(query_kernel<G>, args, stream);
  });
}
template <int kDim>
cudaError_t Launcher<kDim>::key_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_shape<kDim, true>(args, [&](auto shape) {
    using G = decltype(shape);
    return launch<G, Sweep::kKeys>(key_kernel<G>, args, stream);
  });
}

}  // namespace fmmformer::cuda::chunks
