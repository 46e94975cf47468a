// SPDX-License-Identifier: Apache-2.0
// Rows of a tensor on their way to shared memory and back, by the copy engine of a GPU of compute
// capability 9.0: one thread asks for many at once. The engine permutes their pieces of sixteen
// bytes by the row, as operands of a warpgroup want them, has zeros for what is not in the
// sequence, and writes nothing there.
#pragma once

#include <cuda.h>

#include "attention/fmm/cuda/bulk_copy.cuh"

namespace fmmformer::cuda {

/// How the engine finds the rows of one head in a tensor [batch, length, heads, channels], and how
/// many of them it takes at once: see row_maps.cuh.
struct RowMap {
  CUtensorMap map;

  /// Begins to load rows from `token` on. By one thread; someone tells the event how many bytes to
  /// expect.
  __device__ __forceinline__ void begin_load(uint32_t to, int b, int token, int h,
                                             const CopyEvent& event) const {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%2, %3, %4, %5}], [%6];\n" ::"r"(to),
        "l"(&map), "r"(0), "r"(h), "r"(token), "r"(b), "r"(shared_address(event.at))
        : "memory");
  }
  /// Begins to store rows from `token` on, which others have shown to the engine
  /// (show_to_warpgroup).
  __device__ __forceinline__ void begin_store(uint32_t from, int b, int token, int h) const {
    asm volatile(
        "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4}], "
        "[%5];\n" ::"l"(&map),
        "r"(0), "r"(h), "r"(token), "r"(b), "r"(from)
        : "memory");
    commit_bulk_stores();
  }
};

}  // namespace fmmformer::cuda
