// SPDX-License-Identifier: Apache-2.0
// The definitions of launcher.cuh, included where a Launcher is instantiated.
#pragma once

#include <algorithm>

#include "attention/fmm/cuda/launch.cuh"
#include "attention/fmm/cuda/warpgroups/kernels.cuh"
#include "attention/fmm/cuda/warpgroups/launcher.cuh"

namespace fmmformer::cuda::warpgroups {

/// So many blocks of a kernel with the roles of kThreads threads. Refuses what would wait for ever:
/// see kSweepRegisters.
template <int kBytes, int kThreads, int kRegisters, typename... Parameters>
cudaError_t launch(void (*kernel)(Parameters...), int64_t blocks, cudaStream_t stream,
                   const std::type_identity_t<Parameters>&... arguments) {
  static_assert(kBytes <= PassShape<128>::kSharedBytes);
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
  if (error != cudaSuccess) return error;
  if (attributes.numRegs < kRegisters) return cudaErrorLaunchOutOfResources;
  return launch_kernel(kernel, dim3(static_cast<unsigned>(blocks)), kThreads, kBytes, stream,
                       arguments...);
}
inline int64_t blocks_of(const SweepArgs& args) { return args.batch * args.heads * args.segments; }

template <Sweep kSweep, typename G>
cudaError_t launch_sum(G, const SweepArgs& args, cudaStream_t stream) {
  return launch<Memory<G, kSweep>::kBytes, kSumThreads, kSumRegisters>(
      sum_kernel<G, kSweep>, blocks_of(args), stream, args);
}
/// `rounds` of backward_kernel's, from `first` on.
template <typename G>
cudaError_t launch_backward(G, int first, int rounds, const SweepArgs& args, cudaStream_t stream) {
  constexpr int kBytes =
      std::max({Memory<G, Sweep::kQueries>::kBytes, Memory<G, Sweep::kKeys>::kBytes,
                Memory<G, Sweep::kValues>::kBytes});
  return launch<kBytes, kSweepThreads, kSweepRegisters>(
      backward_kernel<G>, rounds * blocks_of(args), stream, args, first);
}

/// Calls body(Shape) for the number of maps and channels,
template <bool kDrops, typename Body>
cudaError_t with_maps(const SweepArgs& args, const Body& body) {
  return with_fullness<PassShape<128>::kValueDim>(args, [&](auto full) {
    return args.maps == 1 ? body(Shape<1, kDrops, full>()) : body(Shape<2, kDrops, full>());
  });
}
/// with dropout or without.
template <typename Body>
cudaError_t with_shape(const SweepArgs& args, const Body& body) {
  return args.drop_below > 0 ? with_maps<true>(args, body) : with_maps<false>(args, body);
}

template <int kDim>
cudaError_t Launcher<kDim>::sum_states(const SweepArgs& args, bool of_queries,
                                       cudaStream_t stream) {
  return with_maps<false>(args, [&](auto shape) {  // there is no near field here
    return of_queries ? launch_sum<Sweep::kSumOfQueries>(shape, args, stream)
                      : launch_sum<Sweep::kSumOfKeys>(shape, args, stream);
  });
}
template <int kDim>
cudaError_t Launcher<kDim>::forward_sweep(const SweepArgs& args, cudaStream_t stream) {
  return with_shape(args, [&](auto shape) {
    using G = decltype(shape);
    return launch<Memory<G, Sweep::kForward>::kBytes, kSweepThreads, kSweepRegisters>(
        forward_kernel<G>, blocks_of(args), stream, args);
  });
}
template <int kDim>
cudaError_t Launcher<kDim>::query_sweep(const SweepArgs& args, cudaStream_t stream) {
  const bool all = args.progress != nullptr;
  if (all) {
    const size_t bytes = 2 * args.batch * args.heads * sizeof(int);
    const cudaError_t error = cudaMemsetAsync(args.progress, 0, bytes, stream);
    if (error != cudaSuccess) return error;
  }
  return with_shape(args, [&](auto shape) {
    return launch_backward(shape, 0, all ? 2 + args.value_pieces : 1, args, stream);
  });
}
template <int kDim>
cudaError_t Launcher<kDim>::key_sweep(const SweepArgs& args, cudaStream_t stream) {
  if (args.progress) return cudaSuccess;  // done
  return with_shape(args, [&](auto shape) { return launch_backward(shape, 1, 2, args, stream); });
}

}  // namespace fmmformer::cuda::warpgroups
