// SPDX-License-Identifier: Apache-2.0
// The definitions of launcher.cuh, included where a Launcher is instantiated.
#pragma once

#include <algorithm>

#include "attention/fmm/cuda/architectures.h"
#include "attention/fmm/cuda/kernels.cuh"
#include "attention/fmm/cuda/launch.cuh"
#include "attention/fmm/cuda/launcher.cuh"

namespace fmmformer::cuda {

// Whether kernels are compiled for GPUs on which a block has less shared memory than on an H200:
// those before 9.0.
#ifdef FMMFORMER_KERNELS_FOR_SMALL_GPUS
constexpr bool kForSmallGpus = true;
#else
constexpr bool kForSmallGpus =
    std::ranges::any_of(kArchitectures, [](int one) { return one < 900; });
#endif

template <typename G>
using FewerWarps =
    Geometry<typename G::Math, G::kKeyDim, G::kValueDim, G::kMaps, (G::kWarps + 1) / 2>;

/// Launches kernel_of(a geometry): of G or, where a block has no room for its rows, of fewer warps,
/// which have fewer rows. Only wide rows in fp32 may need that.
template <typename G, typename KernelOf>
cudaError_t launch(const SweepArgs& args, int own_count, bool backward, cudaStream_t stream,
                   const KernelOf& kernel_of) {
  const int64_t bytes = SharedMemory<G>(args, nullptr, own_count, backward).bytes;
  if constexpr (kForSmallGpus && G::kWarps > 1 && G::kKeyDim > 32 &&
                sizeof(typename G::Elem) == 4) {
    if (bytes > most_shared_bytes())
      return launch<FewerWarps<G>>(args, own_count, backward, stream, kernel_of);
  }
  const int64_t blocks = args.batch * args.heads * args.segments;
  return launch_kernel(kernel_of(G()), dim3(static_cast<unsigned>(blocks)), G::kThreads, bytes,
                       stream, args);
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
  return of_queries ? launch<G>(args, 0, true, stream,
                                [](auto g) { return sum_kernel<decltype(g), true>; })
                    : launch<G>(args, 0, true, stream,
                                [](auto g) { return sum_kernel<decltype(g), false>; });
}
template <typename Math, int kKeyDim>
cudaError_t Launcher<Math, kKeyDim>::forward_sweep(const SweepArgs& args, cudaStream_t stream) {
  using G = PassGeometry<Math, kKeyDim>;
  return launch<G>(args, 1, false, stream, [](auto g) { return forward_kernel<decltype(g)>; });
}
template <typename Math, int kKeyDim>
cudaError_t Launcher<Math, kKeyDim>::query_sweep(const SweepArgs& args, cudaStream_t stream) {
  using G = PassGeometry<Math, kKeyDim>;
  return launch<G>(args, 2, true, stream, [](auto g) { return query_kernel<decltype(g)>; });
}
template <typename Math, int kKeyDim>
cudaError_t Launcher<Math, kKeyDim>::key_sweep(const SweepArgs& args, cudaStream_t stream) {
  using G = PassGeometry<Math, kKeyDim>;
  return launch<G>(args, 2, true, stream, [](auto g) { return key_kernel<decltype(g)>; });
}

}  // namespace fmmformer::cuda
