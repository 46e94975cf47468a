// SPDX-License-Identifier: Apache-2.0
// For sm_90a alone: see src/CMakeLists.txt.
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "for sm_90a alone: elsewhere products of a warpgroup would be nothing at all"
#endif

#include "attention/fmm/cuda/chunks/both_sides/forward/kernel.cuh"
#include "attention/fmm/cuda/chunks/both_sides/kernel.cuh"
#include "attention/fmm/cuda/launch.cuh"

namespace fmmformer::cuda::chunks::both_sides {
namespace {

template <int kMaps>
using Of = Shape<64, kMaps, /*kDrops=*/false, /*kPadded=*/false, /*kWarpgroup=*/true>;

/// The blocks of a pair's segments are a cluster.
template <typename... Parameters>
cudaError_t launch(void (*kernel)(SweepArgs, Parameters...), const SweepArgs& args, int threads,
                   int shared_bytes, cudaStream_t stream, Parameters... others) {
  const int64_t blocks = args.batch * args.heads * args.segments;
  return launch_clusters(kernel, dim3(static_cast<unsigned>(blocks)), args.segments, threads,
                         shared_bytes, stream, args, others...);
}
template <int kMaps>
cudaError_t launch_forward(const SweepArgs& args, cudaStream_t stream) {
  using G = Of<kMaps>;
  return launch(forward::forward_kernel<G>, args, forward::kThreads, forward::Memory<G>::kBytes,
                stream);
}
template <int kMaps>
cudaError_t launch_gradients(const SweepArgs& args, cudaStream_t stream) {
  using G = Of<kMaps>;
  return launch(gradient_kernel<G>, args, Groups<G>::kThreads, Memory<G>::kBytes, stream,
                Launcher::reduces_weight_sums(args));
}

}  // namespace

cudaError_t Launcher::forward_sweep(const SweepArgs& args, cudaStream_t stream) {
  return args.maps == 1 ? launch_forward<1>(args, stream) : launch_forward<2>(args, stream);
}
cudaError_t Launcher::gradient_sweep(const SweepArgs& args, cudaStream_t stream) {
  return args.maps == 1 ? launch_gradients<1>(args, stream) : launch_gradients<2>(args, stream);
}

}  // namespace fmmformer::cuda::chunks::both_sides
