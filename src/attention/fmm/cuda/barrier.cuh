// SPDX-License-Identifier: Apache-2.0
// Barriers that warps of a thread block may reach from different places in the code.
#pragma once

#include <cuda_runtime.h>

namespace fmmformer::cuda {

/// Waits for all threads of the block. __syncthreads is the same, but for code that all run alike.
__device__ __forceinline__ void meet_block() { asm volatile("bar.sync 0;\n" ::: "memory"); }
/// Waits for `threads` threads, whole warps, that call it with the same number, 1 to 15.
__device__ __forceinline__ void named_barrier(int number, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(number), "r"(threads) : "memory");
}

/// Counts as one of them without waiting: what this thread wrote is there for those who wait.
__device__ __forceinline__ void arrive_at_barrier(int number, int threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(number), "r"(threads) : "memory");
}

}  // namespace fmmformer::cuda
