// SPDX-License-Identifier: Apache-2.0
// A warp's own sixteen rows: their features as operands, and results on their way to memory.
#pragma once

#include "attention/fmm/cuda/chunk_rows.cuh"
#include "attention/fmm/cuda/chunks/state.cuh"

namespace fmmformer::cuda::chunks {

/// Sixteen raw rows of q or k in shared memory, and what the maps make of them as operands. Rows
/// are loaded again for every map, an instruction for sixteen rows and columns: registers are
/// scarce. Where Memory has room, so is exp(-|x|), which maps and slopes share.
template <typename G, Sweep kSweep>
struct OwnRows {
  static constexpr bool kKept = Memory<G, kSweep>::kKeepsDecay;
  const Loader<G>& load;
  int tile;
  uint4* decay;  // of this lane, kWarpSize apart for every block

  __device__ __forceinline__ explicit OwnRows(const Walk<G, kSweep>& walk, const Loader<G>& load)
      : load(load), tile(walk.own_tile(0)) {
    if constexpr (kKept) {
      decay = shared_at<uint4>(Memory<G, kSweep>::kDecay) +
              walk.place.warp * G::kBlocks * kWarpSize + lane_id();
#pragma unroll
      for (int s = 0; s < G::kBlocks; ++s) {
        const Fragment e = decay_block(load.left(tile, s));
        decay[s * kWarpSize] = make_uint4(e.r[0], e.r[1], e.r[2], e.r[3]);
      }
    }
  }
  /// Features of the block `s` of channels.
  template <int kMap>
  __device__ __forceinline__ Fragment features(int s) const {
    Fragment f = load.left(tile, s);
    const Fragment e = decay_of_block<kMap>(f, s);
#pragma unroll
    for (int i = 0; i < 4; ++i) f.r[i] = feature_pair<kMap>(f.r[i], e.r[i]);
    return f;
  }
  /// sum += factor * gradient with respect to f, times f's slope; a factor for rows g and g + 8.
  template <int kMap>
  __device__ __forceinline__ void add_input_gradient(Block (&sum)[kSliceBlocks],
                                                     const Block (&gradient)[kSliceBlocks],
                                                     const float (&factor)[2],
                                                     int first_block) const {
#pragma unroll
    for (int b = 0; b < kSliceBlocks; ++b) {
      const Fragment x = load.left(tile, first_block + b);
      const Fragment e = decay_of_block<kMap>(x, first_block + b);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float low, high;
        slope_pair<kMap>(x.r[j], e.r[j], low, high);
        float* to = sum[b][j / 2] + j % 2 * 2;
        const float* from = gradient[b][j / 2] + j % 2 * 2;
        to[0] += factor[j % 2] * from[0] * low, to[1] += factor[j % 2] * from[1] * high;
      }
    }
  }

 private:
  static __device__ __forceinline__ Fragment decay_block(const Fragment& x) {
    return {{decay_of(x.r[0]), decay_of(x.r[1]), decay_of(x.r[2]), decay_of(x.r[3])}};
  }
  template <int kMap>
  __device__ __forceinline__ Fragment decay_of_block(const Fragment& x, int s) const {
    if constexpr (kMap == 2) return x;  // tanh1 does without
    if constexpr (!kKept) return decay_block(x);
    const uint4 e = decay[s * kWarpSize];
    return {{e.x, e.y, e.z, e.w}};
  }
};

/// Rows g and g + 8 times a factor each.
__device__ __forceinline__ void scale_rows(Fragment& f, const SplitFactor (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) f.r[i] = factor[i % 2].times(f.r[i]);
}

/// Writes the warp's rows and channels of result 0 or 1, those that the head has, by way of its own
/// rows of tensor `stage`, which nobody needs any more. Zeros for dead rows.
template <typename G, Sweep kSweep>
__device__ __forceinline__ void write_rows(const Walk<G, kSweep>& walk, int result,
                                           const Block (&rows)[kSliceBlocks], int stage) {
  const Place<G>& place = walk.place;
  const int tile = walk.own_tile(stage);
  const int first_piece = place.slice * (kSlice / kPiece);
  place.meet_slices();
  const int at = result_place<G>();
#pragma unroll
  for (int n = 0; n < 2 * kSliceBlocks; ++n) {
    const float(&c)[4] = rows[n / 2][n % 2];
    const int to = tile + further<G>(at, first_piece + n);
    *shared_at<uint32_t>(to) = Bf16::pack(c[0], c[1]);
    *shared_at<uint32_t>(to + 8 * G::kRow) = Bf16::pack(c[2], c[3]);
  }
  __syncwarp();
  const int row = lane_id() / 8, piece = first_piece + lane_id() % 8;
  const int first = walk.token(place.tile) + row;
  const uint32_t live = walk.live_bits(place.tile);
  Elem* to = walk.row_piece(kResults + result, first, piece);
  const int64_t stride = walk.view(kResults + result).row_stride;
  const int end = has_piece<G>(walk.args.head_dim, piece) ? walk.args.length : 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint4 all = *shared_at<uint4>(tile + piece_place<G>(row + 4 * i, piece));
    if (!(live >> (row + 4 * i) & 1)) all = make_uint4(0, 0, 0, 0);
    if (first + 4 * i < end) *reinterpret_cast<uint4*>(to + 4 * i * stride) = all;
  }
  __syncwarp();
}

}  // namespace fmmformer::cuda::chunks
