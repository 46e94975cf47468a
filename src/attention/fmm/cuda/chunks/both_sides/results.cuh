// SPDX-License-Identifier: Apache-2.0
// A warp's sixteen rows of a result on their way: to others by shared memory, and to memory.
#pragma once

#include "attention/fmm/cuda/chunks/both_sides/shape.cuh"

namespace fmmformer::cuda::chunks::both_sides {

/// The pieces, of eight channels, that a function is about.
template <int kFirst_, int kCount_>
struct Pieces {
  static constexpr int kFirst = kFirst_, kCount = kCount_;
};
using AllPieces = Pieces<0, 2 * kTiles>;

/// A warp's rows, rounded, to a tile of shared memory; and what is there added to rows.
template <typename G, typename Some = AllPieces>
__device__ __forceinline__ void put_rows(int tile, const Block (&rows)[kTiles], Some = {}) {
  const int at = tile + result_place<G>();
#pragma unroll
  for (int n = Some::kFirst; n < Some::kFirst + Some::kCount; ++n) {
    const float(&c)[4] = rows[n / 2][n % 2];
    const int to = further<G>(at, n);
    *shared_at<uint32_t>(to) = Bf16::pack(c[0], c[1]);
    *shared_at<uint32_t>(to + 8 * G::kRow) = Bf16::pack(c[2], c[3]);
  }
}
template <typename G, typename Some = AllPieces>
__device__ __forceinline__ void add_rows(Block (&rows)[kTiles], int tile, Some = {}) {
  const int at = tile + result_place<G>();
#pragma unroll
  for (int n = Some::kFirst; n < Some::kFirst + Some::kCount; ++n) {
    float(&c)[4] = rows[n / 2][n % 2];
    const int from = further<G>(at, n);
    float low, high;
    Bf16::unpack(*shared_at<uint32_t>(from), low, high);
    c[0] += low, c[1] += high;
    Bf16::unpack(*shared_at<uint32_t>(from + 8 * G::kRow), low, high);
    c[2] += low, c[3] += high;
  }
}

/// Writes the warp's rows of a result by way of a tile of shared memory; zeros for dead rows.
template <typename AnyWalk, typename Some = AllPieces>
__device__ __forceinline__ void write_rows(const AnyWalk& walk, int tensor,
                                           const Block (&rows)[kTiles], int stage, Some some = {}) {
  using G = typename AnyWalk::Geometry;
  constexpr int kRowsAtOnce = kWarpSize / Some::kCount;
  __syncwarp();
  put_rows<G>(stage, rows, some);
  __syncwarp();
  const int row = lane_id() / Some::kCount, piece = Some::kFirst + lane_id() % Some::kCount;
  const int first = walk.chunk * kChunk + walk.tile * kBlockDim + row;
  const uint32_t live = walk.live_bits(walk.tile);
  Elem* to = walk.row_piece(tensor, first, piece);
  const int64_t stride = walk.row_stride(tensor);
#pragma unroll
  for (int i = 0; i < kBlockDim; i += kRowsAtOnce) {
    uint4 all = *shared_at<uint4>(stage + piece_place<G>(row + i, piece));
    if (!(live >> (row + i) & 1)) all = make_uint4(0, 0, 0, 0);
    if (first + i < walk.args.length) *reinterpret_cast<uint4*>(to + i * stride) = all;
  }
}

}  // namespace fmmformer::cuda::chunks::both_sides
