// SPDX-License-Identifier: Apache-2.0
// The definitions of launcher.cuh, included where a Launcher is instantiated.
#pragma once

#include "attention/fmm/cuda/chunks_fp32/kernels.cuh"
#include "attention/fmm/cuda/chunks_fp32/launcher.cuh"
#include "attention/fmm/cuda/launch.cuh"

namespace fmmformer::cuda::chunks_fp32 {

/// Whether slices share scores. Three maps leave no room for it, nor do two with feeders, and the
/// key sweep of two has too few registers; so has that of one with feeders.
constexpr bool shares_scores(int maps, Sweep sweep, bool fed) {
  if (fed) return maps == 1 && sweep != Sweep::kKeys;
  return maps == 1 || (maps == 2 && sweep != Sweep::kKeys);
}
template <int kDim, int kMaps, bool kFull, Sweep kSweep, bool kFed>
using ShapeOf = Shape<kDim, kMaps, kFull, shares_scores(kMaps, kSweep, kFed), kFed>;

/// Calls body(Shape) for the number of channels, and of the pass's maps.
template <int kDim, Sweep kSweep, bool kFed, typename Body>
cudaError_t with_shape(const SweepArgs& args, const Body& body) {
  return with_fullness<kDim>(args, [&](auto full) {
    if constexpr (PassShape<kDim>::kMaps > 1) {
      if constexpr (!kFed) {
        if (args.maps == 3) return body(ShapeOf<kDim, 3, full, kSweep, kFed>());
      }
      if (args.maps == 2) return body(ShapeOf<kDim, 2, full, kSweep, kFed>());
    }
    return body(ShapeOf<kDim, 1, full, kSweep, kFed>());
  });
}
template <int kDim, Sweep kSweep, bool kFed, typename KernelOf>
cudaError_t launch(const SweepArgs& args, cudaStream_t stream, const KernelOf& kernel_of) {
  const int64_t blocks = args.batch * args.heads * args.segments;
  return with_shape<kDim, kSweep, kFed>(args, [&](auto shape) {
    using G = decltype(shape);
    constexpr int kBytes = Memory<G, kSweep>::kBytes;
    static_assert(kBytes <= PassShape<kDim>::kSharedBytes);
    return launch_kernel(kernel_of(shape), dim3(static_cast<unsigned>(blocks)), G::kBlockThreads,
                         kBytes, stream, args);
  });
}

template <int kDim, bool kFed>
cudaError_t Launcher<kDim, kFed>::sum_states(const SweepArgs& args, bool of_queries,
                                             cudaStream_t stream) {
  if constexpr (kFed) {
    return Launcher<kDim>::sum_states(args, of_queries, stream);
  } else if (of_queries) {
    return launch<kDim, Sweep::kSumOfQueries, kFed>(
        args, stream, [](auto shape) { return sum_kernel<decltype(shape), true>; });
  } else {
    return launch<kDim, Sweep::kSumOfKeys, kFed>(
        args, stream, [](auto shape) { return sum_kernel<decltype(shape), false>; });
  }
}
template <int kDim, bool kFed>
cudaError_t Launcher<kDim, kFed>::forward_sweep(const SweepArgs& args, cudaStream_t stream) {
  return launch<kDim, Sweep::kForward, kFed>(
      args, stream, [](auto shape) { return forward_kernel<decltype(shape)>; });
}
template <int kDim, bool kFed>
cudaError_t Launcher<kDim, kFed>::query_sweep(const SweepArgs& args, cudaStream_t stream) {
  return launch<kDim, Sweep::kQueries, kFed>(
      args, stream, [](auto shape) { return query_kernel<decltype(shape)>; });
}
template <int kDim, bool kFed>
cudaError_t Launcher<kDim, kFed>::key_sweep(const SweepArgs& args, cudaStream_t stream) {
  return launch<kDim, Sweep::kKeys, kFed>(args, stream,
                                          [](auto shape) { return key_kernel<decltype(shape)>; });
}

}  // namespace fmmformer::cuda::chunks_fp32
