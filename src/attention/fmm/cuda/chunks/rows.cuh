// SPDX-License-Identifier: Apache-2.0
// A warp's own sixteen rows: their features as operands, and results on their way to memory.
#pragma once

#include "attention/fmm/cuda/chunks/state.cuh"

namespace fmmformer::cuda::chunks {

/// Features of sixteen raw rows in shared memory, for the block `s` of channels. Raw rows are
/// loaded again for every map, an instruction for sixteen rows and columns: registers are scarce.
template <typename G, int kMap>
__device__ __forceinline__ Fragment feature_block(const Loader<G>& load, int tile, int s) {
  Fragment f = load.left(tile, s);
#pragma unroll
  for (int i = 0; i < 4; ++i) f.r[i] = feature_pair<kMap>(f.r[i], decay_of(f.r[i]));
  return f;
}

/// sum += factor * gradient with respect to f, times f's slope; a factor for rows g and g + 8.
template <typename G, int kMap>
__device__ __forceinline__ void add_input_gradient(Block (&sum)[kSliceBlocks],
                                                   const Block (&gradient)[kSliceBlocks],
                                                   const float (&factor)[2], const Loader<G>& load,
                                                   int tile, int first_block) {
#pragma unroll
  for (int b = 0; b < kSliceBlocks; ++b) {
    const Fragment x = load.left(tile, first_block + b);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float low, high;
      slope_pair<kMap>(x.r[j], decay_of(x.r[j]), low, high);
      float* to = sum[b][j / 2] + j % 2 * 2;
      const float* from = gradient[b][j / 2] + j % 2 * 2;
      to[0] += factor[j % 2] * from[0] * low, to[1] += factor[j % 2] * from[1] * high;
    }
  }
}

/// Rows g and g + 8 times a factor each.
__device__ __forceinline__ void scale_rows(Fragment& f, const SplitFactor (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) f.r[i] = factor[i % 2].times(f.r[i]);
}

/// Writes the warp's rows and channels of out, dq, dk or dv by way of its own rows of tensor
/// `stage`, which nobody needs any more. Zeros for dead rows.
template <typename G, Sweep kSweep>
__device__ __forceinline__ void write_rows(const Walk<G, kSweep>& walk, const View& view,
                                           const Block (&rows)[kSliceBlocks], int stage) {
  const Place<G>& place = walk.place;
  const int tile = walk.own_tile(stage);
  const int first_piece = place.slice * (kSlice / kPiece);
  place.meet_slices();
  const int at = tile + result_place<G>();
#pragma unroll
  for (int n = 0; n < 2 * kSliceBlocks; ++n) {
    const float(&c)[4] = rows[n / 2][n % 2];
    const int to = at ^ (first_piece + n) << 4;
    *shared_at<uint32_t>(to) = Bf16::pack(c[0], c[1]);
    *shared_at<uint32_t>(to + 8 * G::kRow) = Bf16::pack(c[2], c[3]);
  }
  __syncwarp();
  const int row = lane_id() / 8, piece = first_piece + lane_id() % 8;
  const int first = walk.token(place.tile) + row;
  const uint32_t live = walk.live_bits(place.tile);
  Elem* to = rows_of(view, place) + first * view.row_stride + piece * kPiece;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint4 all = *shared_at<uint4>(tile + swizzled<G>(row + 4 * i, piece));
    if (!(live >> (row + 4 * i) & 1)) all = make_uint4(0, 0, 0, 0);
    if (first + 4 * i < walk.args.length)
      *reinterpret_cast<uint4*>(to + 4 * i * view.row_stride) = all;
  }
  __syncwarp();
}

/// body(r, token) for rows g and g + 8, in one lane each and one slice.
template <typename G, Sweep kSweep, typename Body>
__device__ __forceinline__ void each_row_once(const Walk<G, kSweep>& walk, const Body& body) {
  if (walk.place.slice != 0 || lane_id() % 4 != 0) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int token = walk.token(walk.place.tile) + row_of(2 * r);
    if (token < walk.args.length) body(r, token);
  }
}

}  // namespace fmmformer::cuda::chunks
