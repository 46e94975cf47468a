// SPDX-License-Identifier: Apache-2.0
// For sm_90a alone: see src/CMakeLists.txt.
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "for sm_90a alone: elsewhere products of a warpgroup would be nothing at all"
#endif

#include "attention/fmm/cuda/chunks/launcher-inl.cuh"
#include "attention/fmm/cuda/chunks/warpgroup/kernels.cuh"
#include "attention/fmm/cuda/chunks/warpgroup/launcher.cuh"

namespace fmmformer::cuda::chunks {
extern template struct Launcher<64>;  // has the sweeps of more maps, and is compiled elsewhere
}
namespace fmmformer::cuda::chunks::warpgroup {
namespace {

// With more maps these sweeps' registers spill, and those by warps take less time.
constexpr int kMostMapsForward = 2, kMostMapsOfQueries = 1;

template <int kMaps, bool kDrops, bool kFull>
using Of = Shape<64, kMaps, kDrops, /*kPadded=*/false, kFull, /*kWarpgroup=*/true>;

/// Calls body(Shape) for the number of channels, and of maps up to kMost.
template <int kMost, bool kDrops, typename Body>
cudaError_t with_maps(const SweepArgs& args, const Body& body) {
  return with_fullness<64>(args, [&](auto full) {
    if constexpr (kMost > 2) {
      if (args.maps == 3) return body(Of<3, kDrops, full>());
    }
    if constexpr (kMost > 1) {
      if (args.maps == 2) return body(Of<2, kDrops, full>());
    }
    return body(Of<1, kDrops, full>());
  });
}
template <int kMost, typename Body>
cudaError_t with_shape(const SweepArgs& args, const Body& body) {
  return args.drop_below > 0 ? with_maps<kMost, true>(args, body)
                             : with_maps<kMost, false>(args, body);
}

}  // namespace

cudaError_t Launcher::sum_states(const SweepArgs& args, bool of_queries, cudaStream_t stream) {
  return with_maps<PassShape::kMaps, false>(args, [&](auto shape) {  // there is no near field here
    using G = decltype(shape);
    return of_queries ? launch<G, Sweep::kSumOfQueries>(sum_kernel<G, true>, args, stream)
                      : launch<G, Sweep::kSumOfKeys>(sum_kernel<G, false>, args, stream);
  });
}
cudaError_t Launcher::forward_sweep(const SweepArgs& args, cudaStream_t stream) {
  if (args.maps > kMostMapsForward) return chunks::Launcher<64>::forward_sweep(args, stream);
  return with_shape<kMostMapsForward>(args, [&](auto shape) {
    using G = decltype(shape);
    return launch<G, Sweep::kForward>(forward_kernel<G>, args, stream);
  });
}
cudaError_t Launcher::query_sweep(const SweepArgs& args, cudaStream_t stream) {
  if (args.maps > kMostMapsOfQueries) return chunks::Launcher<64>::query_sweep(args, stream);
  return with_shape<kMostMapsOfQueries>(args, [&](auto shape) {
    using G = decltype(shape);
    return launch<G, Sweep::kQueries>(query_kernel<G>, args, stream);
  });
}
cudaError_t Launcher::key_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_shape<PassShape::kMaps>(args, [&](auto shape) {
    using G = decltype(shape);
    return launch<G, Sweep::kKeys>(key_kernel<G>, args, stream);
  });
}

}  // namespace fmmformer::cuda::chunks::warpgroup
