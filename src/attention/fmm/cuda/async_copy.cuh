// SPDX-License-Identifier: Apache-2.0
// Copies from memory to shared memory that go on beside a thread's work.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace fmmformer::cuda {

/// Sixteen bytes; zeros instead where they are not `live`: then the source's address does not
/// matter. kWholeLine: what others will ask for of the same 128 bytes comes to the second-level
/// cache too.
template <bool kWholeLine = false>
__device__ __forceinline__ void copy_async(void* to, const void* from, bool live) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  const int bytes = live ? 16 : 0;  // the rest is filled with zeros
  if constexpr (kWholeLine) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(address),
                 "l"(from), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(address), "l"(from),
                 "r"(bytes)
                 : "memory");
  }
}
__device__ __forceinline__ void copy_number_async(float* to, const float* from) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;\n" ::"r"(address), "l"(from) : "memory");
}

/// What this thread has begun since the last time becomes a group.
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}
/// Waits for all of this thread's copies, or for all but those of the newest group.
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_all;\n" ::: "memory");
}
__device__ __forceinline__ void wait_for_older_copies() {
  asm volatile("cp.async.wait_group 1;\n" ::: "memory");
}

}  // namespace fmmformer::cuda
