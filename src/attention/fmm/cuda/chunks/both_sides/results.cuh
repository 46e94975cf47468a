// SPDX-License-Identifier: Apache-2.0
// A warp's sixteen rows of a result on their way: to others by shared memory, and to memory by the
// copy engine.
#pragma once

#include "attention/fmm/cuda/chunks/both_sides/shape.cuh"

namespace fmmformer::cuda::chunks::both_sides {

/// Four blocks of eight by eight numbers; a lane has the place of row lane % 8 of block lane / 8.
__device__ __forceinline__ void store_blocks(int at, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};\n" ::"r"(
                   shared_address(shared_at<char>(at))),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

/// A warp's rows, rounded, to a tile of shared memory.
template <typename G>
__device__ __forceinline__ void put_rows(const Loader<G>& load, int tile,
                                         const Block (&rows)[kTiles]) {
#pragma unroll
  for (int s = 0; s < kTiles; ++s)
    store_blocks(tile + further<G>(load.rows, 2 * s), rounded(rows[s]).r);
}

/// Eight of a warp's rows, the first or the second: to a tile of shared memory, and what is there
/// added to them.
template <typename G, int kHalf>
struct HalfRows {
  static __device__ __forceinline__ int place(int tile) {
    return tile + piece_place<G>(kHalf * 8 + lane_id() % 8, lane_id() / 8);
  }
  static __device__ __forceinline__ void put(int tile, const Block (&rows)[kTiles]) {
    const int at = place(tile);
#pragma unroll
    for (int s = 0; s < kTiles; s += 2) {
      uint32_t r[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* c = rows[s + i / 2][i % 2] + 2 * kHalf;
        r[i] = Bf16::pack(c[0], c[1]);
      }
      store_blocks(further<G>(at, 2 * s), r);
    }
  }
  static __device__ __forceinline__ void add_to(Block (&rows)[kTiles], int tile) {
    const int at = place(tile);
#pragma unroll
    for (int s = 0; s < kTiles; s += 2) {
      uint32_t r[4];
      Bf16::ldmatrix4(r, shared_at<Elem>(further<G>(at, 2 * s)));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float* c = rows[s + i / 2][i % 2] + 2 * kHalf;
        float low, high;
        Bf16::unpack(r[i], low, high);
        c[0] += low, c[1] += high;
      }
    }
  }
};

/// Begins to write `count` rows of a result, from row `first` of the warp's tile on, which the warp
/// has put in a tile of shared memory; zeros for dead ones. Nobody may write there until the warp
/// has called await_stores_read().
template <typename AnyWalk>
__device__ __forceinline__ void begin_to_write(const AnyWalk& walk, int tensor, int tile,
                                               int first = 0, int count = kBlockDim) {
  using G = typename AnyWalk::Geometry;
  const uint32_t live = walk.live_bits(walk.tile);
  if (live != 0xffffu) {
    __syncwarp();
    const int row = first + lane_id() % count;
#pragma unroll 1
    for (int piece = lane_id() / count; piece < G::kPieces; piece += kWarpSize / count) {
      if (!(live >> row & 1))
        *shared_at<uint4>(tile + row * G::kRow + piece * 16) = make_uint4(0, 0, 0, 0);
    }
  }
  show_to_warpgroup();
  __syncwarp();
  if (lane_id() != 0) return;
  const int2 place = walk.batch_and_head();
  walk.maps.of[tensor].begin_store(shared_address(shared_at<char>(tile + first * G::kRow)), place.x,
                                   walk.chunk * kChunk + walk.tile * kBlockDim + first, place.y);
}
/// The same of all of a warp's rows, by way of a tile from which it may still be writing others.
template <typename AnyWalk, typename G = typename AnyWalk::Geometry>
__device__ __forceinline__ void write_rows(const AnyWalk& walk, const Loader<G>& load, int tensor,
                                           const Block (&rows)[kTiles], int stage) {
  await_stores_read();
  __syncwarp();
  put_rows(load, stage, rows);
  begin_to_write(walk, tensor, stage);
}

}  // namespace fmmformer::cuda::chunks::both_sides
