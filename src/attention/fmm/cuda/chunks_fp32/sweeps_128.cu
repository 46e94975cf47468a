// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "attention/fmm/cuda/chunks_fp32/launcher-inl.cuh"
#include "attention/fmm/cuda/chunks_fp32/wide/keys.cuh"
#include "attention/fmm/cuda/chunks_fp32/wide/queries.cuh"

namespace fmmformer::cuda::chunks_fp32 {
namespace {

template <int kBytes>
cudaError_t launch_wide(void (*kernel)(SweepArgs), const SweepArgs& args, cudaStream_t stream) {
  static_assert(kBytes <= PassShape<Wide::kDim>::kSharedBytes);
  const int64_t blocks = args.batch * args.heads * args.segments;
  return launch_kernel(kernel, dim3(static_cast<unsigned>(blocks)), kThreads, kBytes, stream, args);
}
/// Calls body(WideHeads) for the number of channels.
template <typename Body>
cudaError_t with_heads(const SweepArgs& args, const Body& body) {
  return with_fullness<Wide::kDim>(args, [&](auto full) { return body(WideHeads<full>()); });
}

/// Sums of states, of up to two maps at once: they share rows and values' operands.
template <bool kOfQueries>
cudaError_t sum_wide_states(const SweepArgs& args, cudaStream_t stream) {
  const auto launch_sum = [&](auto shape, const SweepArgs& of_maps) {
    using G = decltype(shape);
    constexpr Sweep kSweep = kOfQueries ? Sweep::kSumOfQueries : Sweep::kSumOfKeys;
    return launch_wide<Memory<G, kSweep>::kBytes>(sum_kernel<G, kOfQueries>, of_maps, stream);
  };
  cudaError_t result = cudaSuccess;
  for (int l = 0; l < args.maps && result == cudaSuccess; l += 2) {
    SweepArgs of_maps = args;
    of_maps.first_map += l, of_maps.maps = std::min(args.maps - l, 2);
    std::copy_n(args.feature_maps + l, of_maps.maps, of_maps.feature_maps);
    result = with_fullness<Wide::kDim>(args, [&](auto full) {
      return of_maps.maps == 2 ? launch_sum(Shape<Wide::kDim, 2, full, false>(), of_maps)
                               : launch_sum(Shape<Wide::kDim, 1, full, false>(), of_maps);
    });
  }
  return result;
}

}  // namespace

template <>
cudaError_t Launcher<128>::sum_states(const SweepArgs& args, bool of_queries, cudaStream_t stream) {
  return of_queries ? sum_wide_states<true>(args, stream) : sum_wide_states<false>(args, stream);
}
template <>
cudaError_t Launcher<128>::forward_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_heads(args, [&](auto heads) {
    constexpr int kBytes = Memory<decltype(heads), Sweep::kForward>::kBytes;
    return launch_wide<kBytes>(wide_forward_kernel<decltype(heads)>, args, stream);
  });
}
template <>
cudaError_t Launcher<128>::query_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_heads(args, [&](auto heads) {
    constexpr int kBytes = Memory<decltype(heads), Sweep::kQueries>::kBytes;
    return launch_wide<kBytes>(wide_query_kernel<decltype(heads)>, args, stream);
  });
}
template <>
cudaError_t Launcher<128>::key_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_heads(args, [&](auto heads) {
    constexpr int kBytes = Memory<decltype(heads), Sweep::kKeys>::kBytes;
    return launch_wide<kBytes>(wide_key_kernel<decltype(heads)>, args, stream);
  });
}

template struct Launcher<128>;

}  // namespace fmmformer::cuda::chunks_fp32
