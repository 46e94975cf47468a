// SPDX-License-Identifier: Apache-2.0
// The launch of a kernel that takes much shared memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

namespace fmmformer::cuda {

/// The shared memory that a thread block of the current GPU may have; 0 where nobody tells.
inline int64_t most_shared_bytes() {
  int device = 0, bytes = 0;
  const bool known = cudaGetDevice(&device) == cudaSuccess &&
                     cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                            device) == cudaSuccess;
  return known ? bytes : 0;
}

/// No blocks: nothing to do.
template <typename... Parameters>
cudaError_t launch_clusters(void (*kernel)(Parameters...), dim3 blocks, int cluster, int threads,
                            int64_t shared_bytes, cudaStream_t stream,
                            const std::type_identity_t<Parameters>&... arguments) {
  if (blocks.x == 0) return cudaSuccess;
  // Every time: the attribute belongs to the device, and there may be several. It costs less than a
  // microsecond.
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
  if (error != cudaSuccess) return error;
  if (cluster == 1) {
    kernel<<<blocks, threads, static_cast<size_t>(shared_bytes), stream>>>(arguments...);
    return cudaGetLastError();
  }
  cudaLaunchAttribute size{};
  size.id = cudaLaunchAttributeClusterDimension;
  size.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = blocks, config.blockDim = dim3(threads), config.stream = stream;
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.attrs = &size, config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}
/// A launch that need not wait for the end of the kernel before it, if that lets it
/// (let_next_begin): it awaits what it needs itself (await_kernel_before). Compute capability 9.0
/// alone.
template <typename... Parameters>
cudaError_t launch_early(void (*kernel)(Parameters...), dim3 blocks, dim3 threads,
                         cudaStream_t stream,
                         const std::type_identity_t<Parameters>&... arguments) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = blocks, config.blockDim = threads, config.stream = stream;
  config.attrs = &early, config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}
__device__ __forceinline__ void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}
__device__ __forceinline__ void await_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}
template <typename... Parameters>
cudaError_t launch_kernel(void (*kernel)(Parameters...), dim3 blocks, int threads,
                          int64_t shared_bytes, cudaStream_t stream,
                          const std::type_identity_t<Parameters>&... arguments) {
  return launch_clusters(kernel, blocks, 1, threads, shared_bytes, stream, arguments...);
}

}  // namespace fmmformer::cuda
