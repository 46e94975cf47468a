// SPDX-License-Identifier: Apache-2.0
// Blocks of scores on their way from the warps that form them to those that multiply with them.
#pragma once

#include "attention/fmm/cuda/chunks_fp32/groups.cuh"
#include "attention/fmm/cuda/chunks_fp32/near.cuh"
#include "attention/fmm/cuda/chunks_fp32/wide/shape.cuh"

namespace fmmformer::cuda::chunks_fp32 {

/// What blocks of scores are, in the order in which they lie: of a tile of own rows the near
/// field's groups, three, and the far field's, two; the key sweep has both kinds twice.
constexpr int kNearScores = 0, kFarScores = 3;  // what values are multiplied with, or grad_out
constexpr int kNearSlopes = 5, kFarSlopes = 8;  // ... queries; keys, in the query sweep: as above

template <Sweep kSweep>
struct Operands {
  using M = Memory<Wide, kSweep>;
  static constexpr int kOfTile = M::kOperandCount / Wide::kTiles;

  static __device__ __forceinline__ uint4* at(int tile, int which) {
    return reinterpret_cast<uint4*>(shared_at(M::kOperands + (tile * kOfTile + which) * kOperand)) +
           lane_id();
  }
  static __device__ __forceinline__ void store(int tile, int which, const Left& x) {
    uint4* to = at(tile, which);
    to[0] = make_uint4(x.high[0], x.high[1], x.high[2], x.high[3]);
    to[kWarpSize] = make_uint4(x.low[0], x.low[1], x.low[2], x.low[3]);
  }
  static __device__ __forceinline__ Left load(int tile, int which) {
    const uint4 *from = at(tile, which), high = from[0], low = from[kWarpSize];
    return {{high.x, high.y, high.z, high.w}, {low.x, low.y, low.z, low.w}};
  }
};

/// c = (sixteen rows at `left`) (those at `right`)^T, with the shifts of both.
template <typename G>
__device__ __forceinline__ void multiply_tiles(Block& c, int left, int right,
                                               const Loader<G>& load) {
  Block sums[2];  // by turns: fewer steps wait for one another
  clear(sums);
#pragma unroll
  for (int s = 0; s < Wide::kBlocks; ++s) {
    const Right columns[1] = {load.right(right, s)};
    add_products(sums + s % 2, load.left(left, s), columns);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) c[i / 4][i % 4] = sums[0][i / 4][i % 4] + sums[1][i / 4][i % 4];
}

}  // namespace fmmformer::cuda::chunks_fp32
