// SPDX-License-Identifier: Apache-2.0
// For sm_90a alone: see src/CMakeLists.txt.
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "for sm_90a alone: elsewhere products of a warpgroup would be nothing at all"
#endif

#include "attention/fmm/cuda/chunks/both_sides/kernel.cuh"

namespace fmmformer::cuda::chunks::both_sides {
namespace {

template <int kMaps>
cudaError_t launch(const SweepArgs& args, cudaStream_t stream) {
  using G = Shape<64, kMaps, /*kDrops=*/false, /*kPadded=*/false, /*kWarpgroup=*/true>;
  const auto kernel = gradient_kernel<G>;
  constexpr int kBytes = Memory<G>::kBytes;
  const int64_t blocks = args.batch * args.heads * args.segments;
  if (blocks == 0) return cudaSuccess;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(args.segments), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks)), config.blockDim = dim3(Groups<G>::kThreads);
  config.dynamicSmemBytes = kBytes, config.stream = stream;
  config.attrs = &cluster, config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, args);
}

}  // namespace

cudaError_t Launcher::gradient_sweep(const SweepArgs& args, cudaStream_t stream) {
  return args.maps == 1 ? launch<1>(args, stream) : launch<2>(args, stream);
}

}  // namespace fmmformer::cuda::chunks::both_sides
