// SPDX-License-Identifier: Apache-2.0
// Copies of many bytes at a time, by the copy engine of a GPU of compute capability 9.0: one thread
// asks for them. Addresses and sizes are multiples of sixteen bytes.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace fmmformer::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

/// From shared memory. Others' writes there must have been shown to the engine (show_to_warpgroup)
/// before a barrier.
__device__ __forceinline__ void begin_bulk_store(void* to, const void* from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
}
/// Those that this thread has begun since the last time become a group.
__device__ __forceinline__ void commit_bulk_stores() {
  asm volatile("cp.async.bulk.commit_group;\n" ::: "memory");
}
/// Waits until what this thread's stores read may be written again, but for the newest kNewer
/// groups of them; and until all is written.
template <int kNewer = 0>
__device__ __forceinline__ void await_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(kNewer) : "memory");
}
__device__ __forceinline__ void await_stores() {
  asm volatile("cp.async.bulk.wait_group 0;\n" ::: "memory");
}
/// Waits until what this thread's stores read may be written again.
__device__ __forceinline__ void finish_bulk_stores() {
  asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;\n" ::: "memory");
}

/// An event in shared memory, at which copies to there arrive: again and again, by turns 0 and 1.
struct CopyEvent {
  uint64_t* at;

  /// By one thread; a barrier must follow.
  __device__ __forceinline__ void init() const {
    asm volatile(
        "mbarrier.init.shared::cta.b64 [%0], 1;\nfence.mbarrier_init.release.cluster;\n" ::"r"(
            shared_address(at))
        : "memory");
  }
  /// So many bytes are going to come in all, by any number of begin().
  __device__ __forceinline__ void expect(int bytes) const {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(shared_address(at)),
        "r"(bytes)
        : "memory");
  }
  __device__ __forceinline__ void begin(void* to, const void* from, int bytes) const {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
        "[%3];\n" ::"r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(at))
        : "memory");
  }
  __device__ __forceinline__ void wait(int turn) const {
    asm volatile(
        "{\n.reg .pred p;\nagain:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra again;\n}\n" ::"r"(
            shared_address(at)),
        "r"(turn)
        : "memory");
  }
};

}  // namespace fmmformer::cuda
