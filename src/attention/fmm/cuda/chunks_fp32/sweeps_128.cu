// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "attention/fmm/cuda/chunks_fp32/launcher-inl.cuh"
#include "attention/fmm/cuda/chunks_fp32/wide/keys.cuh"
#include "attention/fmm/cuda/chunks_fp32/wide/queries.cuh"

namespace fmmformer::cuda::chunks_fp32 {
namespace {

template <Sweep kSweep, typename Kernel>
cudaError_t launch_wide(const SweepArgs& args, cudaStream_t stream, Kernel kernel) {
  constexpr int kBytes = Memory<Wide, kSweep>::kBytes;
  static_assert(kBytes <= PassShape<Wide::kDim>::kSharedBytes);
  const int64_t blocks = args.batch * args.heads * args.segments;
  return launch_kernel(kernel, dim3(static_cast<unsigned>(blocks)), kThreads, kBytes, stream, args);
}

}  // namespace

/// Sums of states, of up to two maps at once: they share rows and values' operands.
template <bool kOfQueries>
cudaError_t sum_wide_states(const SweepArgs& args, cudaStream_t stream) {
  constexpr Sweep kSweep = kOfQueries ? Sweep::kSumOfQueries : Sweep::kSumOfKeys;
  const auto launch_sum = [&](auto shape, const SweepArgs& of_maps) {
    using G = decltype(shape);
    constexpr int kBytes = Memory<G, kSweep>::kBytes;
    static_assert(kBytes <= PassShape<Wide::kDim>::kSharedBytes);
    const int64_t blocks = args.batch * args.heads * args.segments;
    return launch_kernel(sum_kernel<G, kOfQueries>, dim3(static_cast<unsigned>(blocks)), kThreads,
                         kBytes, stream, of_maps);
  };
  cudaError_t result = cudaSuccess;
  for (int l = 0; l < args.maps && result == cudaSuccess; l += 2) {
    SweepArgs of_maps = args;
    of_maps.first_map += l, of_maps.maps = std::min(args.maps - l, 2);
    std::copy_n(args.feature_maps + l, of_maps.maps, of_maps.feature_maps);
    result = of_maps.maps == 2 ? launch_sum(Shape<Wide::kDim, 2, false>(), of_maps)
                               : launch_sum(Shape<Wide::kDim, 1, false>(), of_maps);
  }
  return result;
}

template <>
cudaError_t Launcher<128>::sum_states(const SweepArgs& args, bool of_queries, cudaStream_t stream) {
  return of_queries ? sum_wide_states<true>(args, stream) : sum_wide_states<false>(args, stream);
}
template <>
cudaError_t Launcher<128>::forward_sweep(const SweepArgs& args, cudaStream_t stream) {
  return launch_wide<Sweep::kForward>(args, stream, wide_forward_kernel);
}
template <>
cudaError_t Launcher<128>::query_sweep(const SweepArgs& args, cudaStream_t stream) {
  return launch_wide<Sweep::kQueries>(args, stream, wide_query_kernel);
}
template <>
cudaError_t Launcher<128>::key_sweep(const SweepArgs& args, cudaStream_t stream) {
  return launch_wide<Sweep::kKeys>(args, stream, wide_key_kernel);
}

template struct Launcher<128>;

}  // namespace fmmformer::cuda::chunks_fp32
