// SPDX-License-Identifier: Apache-2.0
// Thread blocks of a cluster: how they meet, and find each other's shared memory. Every launch has
// clusters, of one block if it does not say otherwise; GPUs before sm_90 have no others.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace fmmformer::cuda {

/// Waits for all threads of the cluster, and sees what they have written.
__device__ __forceinline__ void meet_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;\n" ::: "memory");
#else
  __syncthreads();
#endif
}
/// Where another block has what lies at `mine` in this one's shared memory.
template <typename T>
__device__ __forceinline__ T* shared_of_block(T* mine, int block) {
#if __CUDA_ARCH__ >= 900
  uint64_t address;
  asm("mapa.u64 %0, %1, %2;" : "=l"(address) : "l"(mine), "r"(block));
  return reinterpret_cast<T*>(address);
#else
  return mine;
#endif
}

}  // namespace fmmformer::cuda
