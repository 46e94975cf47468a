// SPDX-License-Identifier: Apache-2.0
// Rows on their way to shared memory and results on their way back, by the copy engine: as copies
// of sixteen bytes they were a tenth of all instructions.
#pragma once

#include "attention/fmm/cuda/narrow/sequence.cuh"
#include "attention/fmm/cuda/row_copies.cuh"

namespace fmmformer::cuda::narrow {

/// Of tensors [batch, length, heads, 32]: 64 rows at a time of those that are loaded, sixteen of
/// those that are stored. See make_row_maps.
struct RowMaps {
  RowMap of[kTensors];
};

/// At which loads arrive, [kTensors] in shared memory, where other sweeps have bases.
template <typename G>
__device__ __forceinline__ CopyEvent copy_event(int number) {
  return {shared_at<uint64_t>(G::kBases) + number};
}
/// Begins to load 64 rows. By one thread, which has told the event how many bytes to expect.
template <typename G>
__device__ __forceinline__ void begin_chunk(const Sequence<G>& at, const RowMaps& maps,
                                            Tensor tensor, int b, int chunk, uint32_t to,
                                            const CopyEvent& event) {
  maps.of[tensor].begin_load(to, b, chunk * kRows, at.h, event);
}
/// Rows of dead tokens, whatever memory has there, become zeros: in the warp's tile of a chunk that
/// has arrived. A barrier must follow and, before products of a warpgroup, show_to_warpgroup.
template <typename G>
__device__ __forceinline__ void clear_dead(const Sequence<G>& at, uint32_t chunk, uint32_t live) {
  if (live == 0xffffu) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t row = at.lane / 4 + i * 8;
    const uint32_t to = chunk + at.warp * kTileBytes + row * kRowBytes + at.lane % 4 * 16;
    if (!(live >> row & 1))
      asm volatile("st.shared.v4.b32 [%0], {%1,%1,%1,%1};\n" ::"r"(to), "r"(0) : "memory");
  }
}

/// Sixteen rows of results in `stage`, a tile that nobody else uses until await_stores_read();
/// zeros for those that do not live.
template <typename G>
__device__ __forceinline__ void stage_rows(const Sequence<G>& at, Fragments& f, uint32_t stage,
                                           uint32_t live) {
  if (live != 0xffffu) {
#pragma unroll
    for (int i = 0; i < kBlocks * 4; ++i) {
      if (!(live >> at.row(i % 2 * 2) & 1)) f[i / 4].r[i % 4] = 0;
    }
  }
  __syncwarp();
#pragma unroll
  for (int s = 0; s < kBlocks; ++s) store_matrix(stage + (by_row(at.lane) ^ s * 32), f[s]);
}
template <typename G>
__device__ __forceinline__ void stage_rows(const Sequence<G>& at, const Rows& results,
                                           uint32_t stage, uint32_t live) {
  Fragments f;
#pragma unroll
  for (int s = 0; s < kBlocks; ++s) f[s] = rounded(results[s]);
  stage_rows(at, f, stage, live);
}
/// Begins to write them, as rows of a tile, when the warp has shown them.
template <typename G>
__device__ __forceinline__ void begin_store(const Sequence<G>& at, const RowMaps& maps,
                                            Tensor tensor, uint32_t stage, int tile) {
  __syncwarp();
  if (at.lane == 0) maps.of[tensor].begin_store(stage, at.b, tile * kBlockDim, at.h);
}

}  // namespace fmmformer::cuda::narrow
