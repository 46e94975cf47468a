// SPDX-License-Identifier: Apache-2.0
// Who does what, for causal sequences of up to 256 tokens and heads of 16 channels in bf16: a
// thread block has a whole (batch entry, head), a warp 32 of its tokens, two tiles of sixteen.
//
// All rows of q, k, v and grad_out lie in shared memory from the first to the last, so that nothing
// is loaded twice and no warp walks. As many blocks as run at once take one batch entry after the
// other; the next one's rows come while the last sums are made. For the far fields each warp sums
// its own 32 tokens, a scan by all threads turns the sums into what is before each warp (or after
// it), and the products inside the 32 tokens are made directly. Between these all warps meet.
// Backward is one kernel: the band's probabilities and their gradients are made once, for queries,
// and handed to the keys' side turned.
#pragma once

#include <algorithm>

#include "attention/fmm/cuda/strips/far.cuh"
#include "attention/fmm/cuda/whole/launcher.cuh"

namespace fmmformer::cuda::whole {

using strips::Blocks, strips::Fragments, strips::Inputs, strips::KeySums, strips::RowSums,
    strips::Weights, strips::index_of, strips::shared_at;

constexpr int kTiles = kTokens / kBlockDim;  // of a warp
constexpr int kGroups = 3;                   // of sixteen columns that a band may touch

/// A tile in shared memory, as loads want it: what a lane adds to the address of a tile in its
/// warp's memory is in registers, for both orders of rows.
struct LanePlaces {
  uint32_t by_row, by_column;  // in bytes
};
struct TileAt {
  const LanePlaces& lanes;
  int offset;
};

/// A shape of strips with all that a kernel's shared memory holds, in bytes. Rows are not padded:
/// their halves change places every four rows instead, so that ldmatrix finds eight rows in
/// different banks. kBackward: for that kernel. kNarrow: no query sees the band's first eight
/// columns.
template <int kMaps_, bool kPlain_, bool kUnit_, bool kBackward_, bool kNarrow_>
struct Packed : strips::Shape<Bf16, kDim, kMaps_, kPlain_, kUnit_> {
  using Base = strips::Shape<Bf16, kDim, kMaps_, kPlain_, kUnit_>;
  static_assert(Base::kBlocks == 1);
  using Tile = TileAt;
  static constexpr bool kBackward = kBackward_, kNarrow = kNarrow_;
  static constexpr int kStride = kDim, kTile = kBlockDim * kStride, kTileBytes = 2 * kTile;
  /// Where in a row a column is.
  static __device__ __forceinline__ int place(int row, int column) {
    return column ^ (row >> 2 & 1) * 8;
  }
  // Of a map's sums: float4 [blocks * 2][32], then the sums of feature rows.
  static constexpr int kImage = Base::kSums * kWarpSize, kStateSize = kImage + kDim;

  // The block's: see Weights, Band; which tokens are live, a word a warp, of this sequence and the
  // next.
  static constexpr int kWeights = 0, kBias = kWeights + (Weights<Base>::kBytes + 15) / 16 * 16,
                       kLive = kBias + (2 * kGroups + 1) * 4 * kWarpSize * 4,
                       kWarps = (kLive + 2 * kMostWarps * 4 + 127) / 128 * 128;
  // A warp's: rows [this sequence, the next][tiles][tensors], numbers [2 maps][32] and what forward
  // left [1 or 1 + maps][32], see Sequence; sums for weights [fields][channels]; the first tile's
  // sums of feature rows, [maps][channels]; states [maps][kStateSize] and, in their place, a tile
  // on its way to memory. What keys take from the band, see BandParts, is in place of the next
  // sequence's rows, before these come, and behind the states as far as there is room.
  static constexpr int kSaved = Base::kCareful ? 1 : 1 + kMaps_;
  static constexpr int kTensors = kBackward ? 4 : 3, kRows = 0,
                       kRowsBytes = kTiles * kTensors * kTileBytes,
                       kNumbers = kRows + 2 * kRowsBytes,
                       kSavedNumbers = kNumbers + (kBackward ? 2 * kMaps_ * kTokens * 4 : 0),
                       kWeightSums = kSavedNumbers + (kBackward ? kSaved * kTokens * 4 : 0),
                       kFirstRows = kWeightSums + (kBackward ? Base::kFields * kDim * 4 : 0),
                       kStates = kFirstRows + (kBackward ? kMaps_ * kDim * 4 : 0), kStage = kStates,
                       kMoreParts = kStates + kMaps_ * kStateSize * 4,
                       kWarpBytes =
                           (kMoreParts + (kBackward && kMaps_ < 3 ? 4 * kTileBytes : 0) + 127) /
                           128 * 128;
  static constexpr int kPartsStored = kMaps_ < 3 ? 6 : 4, kPartsKept = 6 - kPartsStored;
  // That registers and shared memory leave room for on a multiprocessor.
  static constexpr int kBlocksAtOnce = kBackward || kMaps_ > 2 ? 2 : 3;
};

/// Operands from a tile. Tiles are written by copies and by store_block, in whose order volatile
/// statements stay; other loads and stores may pass these, so the compiler keeps what it has
/// loaded.
template <Side kSide = Side::kAny>
__device__ __forceinline__ Fragment load_block(const TileAt& tile) {
  const bool any = kSide == Side::kAny;
  uint32_t r[4];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"((any ? tile.lanes.by_row : tile.lanes.by_column) + tile.offset));
  return {{r[0], r[any ? 1 : 2], r[any ? 2 : 1], r[3]}};
}
template <Side kSide = Side::kAny>
__device__ __forceinline__ Fragment load_turned_block(const TileAt& tile) {
  const bool any = kSide == Side::kAny;
  uint32_t r[4];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"((any ? tile.lanes.by_column : tile.lanes.by_row) + tile.offset));
  return {{r[0], r[any ? 1 : 2], r[any ? 2 : 1], r[3]}};
}
/// An operand into a tile.
__device__ __forceinline__ void store_block(const TileAt& tile, const Fragment& f) {
  const uint32_t to = tile.lanes.by_row + tile.offset;
#if __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};\n" ::"r"(to),
               "r"(f.r[0]), "r"(f.r[1]), "r"(f.r[2]), "r"(f.r[3])
               : "memory");
#else
  // Lane 4g + t has columns 2t and the next of row g; where that row begins, lane g knows.
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t row = __shfl_sync(~0u, to, lane_id() / 4 + i * 8);
    asm volatile("st.shared.b32 [%0], %1;\n" ::"r"(row + lane_id() % 4 * 4), "r"(f.r[i])
                 : "memory");
  }
#endif
}
/// Strips' Inputs find this one by its argument.
template <typename G, Side kSide = Side::kAny>
__device__ __forceinline__ void load(Fragments<G>& f, const TileAt& tile) {
  f[0] = load_block<kSide>(tile);
}
template <typename G, Side kSide = Side::kAny>
__device__ __forceinline__ void load_turned(Fragments<G>& f, const TileAt& tile) {
  f[0] = load_turned_block<kSide>(tile);
}

/// c = rows columns^T.
template <typename G>
__device__ __forceinline__ void make_products(Block& c, const Fragments<G>& rows,
                                              const Fragments<G>& columns) {
  begin_product(c, rows[0], columns[0]);
}
template <typename G>
__device__ __forceinline__ void make_products(Block& c, const Fragments<G>& rows,
                                              const TileAt& columns) {
  Fragments<G> right;
  load<G, Side::kRight>(right, columns);
  make_products<G>(c, rows, right);
}
/// sum += a columns, with sixteen tokens as columns of `a`.
template <typename G>
__device__ __forceinline__ void add_rows_of(Blocks<G>& sum, const Fragment& a,
                                            const TileAt& columns) {
  add_product(sum[0], a, load_turned_block<Side::kRight>(columns));
}

/// Keeps an operand in registers as it is, for the compiler neither makes parts of it anew for
/// every product nor shares its registers with an operand of the other side, which wants another
/// order.
__device__ __forceinline__ void keep(Fragment& f) {
  asm volatile("" : "+r"(f.r[0]), "+r"(f.r[1]), "+r"(f.r[2]), "+r"(f.r[3]));
}

__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace fmmformer::cuda::whole
