// SPDX-License-Identifier: Apache-2.0
// Who does what, for causal sequences of up to 512 tokens and heads of 16 or 32 channels in bf16: a
// thread block has a whole (batch entry, head). Its warps go through the sequence in rounds, a tile
// of sixteen tokens each.
//
// All rows of q, k, v and grad_out lie in shared memory from the first to the last, so that nothing
// is loaded twice. For the far fields each warp sums its own tile, a scan by all threads turns the
// sums into what is before each tile (or after it), and products inside a tile are made directly.
// Backward is one kernel: the band's probabilities and their gradients are made once, for queries,
// and handed to the keys' side turned.
#pragma once

#include <algorithm>

#include "attention/fmm/cuda/strips/far.cuh"
#include "attention/fmm/cuda/whole/launcher.cuh"

namespace fmmformer::cuda::whole {

using strips::Blocks, strips::Fragments, strips::Inputs, strips::KeySums, strips::RowSums,
    strips::Weights, strips::index_of, strips::shared_at;

constexpr int kGroups = 3;  // of sixteen columns that a band may touch

/// A tile in shared memory, as loads want it: what a lane adds to the address of the round's tile
/// is in registers, for both orders of rows and each block of channels.
struct LanePlaces {
  uint32_t by_row[2], by_column[2];  // in bytes
};
struct TileAt {
  const LanePlaces& lanes;
  int offset;
};

/// A shape of strips with all that a kernel's shared memory holds, in bytes. Rows are not padded:
/// pieces of sixteen bytes change places by row instead, so that ldmatrix finds eight rows in
/// different banks. kBackward: for that kernel.
template <int kDim_, int kMaps_, bool kPlain_, bool kUnit_, bool kBackward_>
struct Packed : strips::Shape<Bf16, kDim_, kMaps_, kPlain_, kUnit_> {
  using Base = strips::Shape<Bf16, kDim_, kMaps_, kPlain_, kUnit_>;
  using Tile = TileAt;
  static constexpr bool kBackward = kBackward_;
  static constexpr int kStride = kDim_, kTile = kBlockDim * kStride, kTileBytes = 2 * kTile;
  static constexpr int kMapsAtATime = kDim_ == 16 ? kMaps_ : 1;  // as registers allow
  /// Where in a row a column is.
  static __host__ __device__ __forceinline__ constexpr int place(int row, int column) {
    return column ^ (kDim_ == 16 ? row >> 2 & 1 : row >> 1 & 3) * 8;
  }
  // Of a map's sums: float4 [blocks * 2][32], then the sums of feature rows.
  static constexpr int kImage = Base::kSums * kWarpSize, kStateSize = kImage + kDim_;

  static constexpr int kMostWarps = most_warps(kDim_), kMostTiles = kLongest / kBlockDim;

  // The block's: see Weights, Band; which tokens are live, a word a tile; parts of the band for the
  // round before, see BandParts.
  static constexpr int kWeights = 0, kBias = kWeights + (Weights<Base>::kBytes + 15) / 16 * 16,
                       kLive = kBias + (2 * kGroups + 1) * 4 * kWarpSize * 4,
                       kPartBytes = 2 * kWarpSize * 16, kHalo = kLive + kMostTiles * 4,
                       kHaloBytes = kBackward ? 3 * kPartBytes : 0,
                       kWarps = (kHalo + 2 * kHaloBytes + 127) / 128 * 128;
  // A warp's: numbers [2 maps][16], see Sequence; states [maps][kStateSize] and, in their place,
  // what keys take from the band, a tile on its way to memory, and sums for weights.
  static constexpr int kTensors = kBackward ? 4 : 3, kNumbers = 0,
                       kStates = kNumbers + (kBackward ? 2 * kMaps_ * kBlockDim * 4 : 0),
                       kParts = kStates, kStage = kParts + (kBackward ? 2 * kPartBytes : 0),
                       kWeightSums = kStates,
                       kShared = std::max(kMapsAtATime * kStateSize * 4,
                                          kStage - kStates + kTileBytes),
                       kWarpBytes = (kStates + kShared + 127) / 128 * 128;
  // After the warps' memory: rows [tiles][tensors], then states that rounds begin with, see Carry.
  static constexpr int kTileStep = kTensors * kTileBytes, kCarryBytes = kMaps_ * kStateSize * 4;
};

/// The maps [kFirst, kFirst + kCount), which are made together.
template <int kFirst, int kCount>
struct MapGroup {
  static constexpr int first = kFirst, count = kCount;
};
/// body(MapGroup) for all maps.
template <typename G, typename Body>
__device__ __forceinline__ void each_map_group(const Body& body) {
  if constexpr (G::kMapsAtATime == G::kMaps) {
    body(MapGroup<0, G::kMaps>());
  } else {
    each_map<G>([&](auto map) { body(MapGroup<decltype(map)::value, 1>()); });
  }
}
/// body(map) for those of a group.
template <int kFirst, int kCount, typename Body>
__device__ __forceinline__ void each_map_of(MapGroup<kFirst, kCount>, const Body& body) {
  body(MapIndex<kFirst>());
  if constexpr (kCount > 1) body(MapIndex<kFirst + 1>());
  if constexpr (kCount > 2) body(MapIndex<kFirst + 2>());
}

/// Operands from a tile. Found by their argument, also from strips.
template <typename G, Side kSide = Side::kAny>
__device__ __forceinline__ Fragment load_block(const TileAt& tile, int s) {
  const bool any = kSide == Side::kAny;
  uint32_t r[4];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"((any ? tile.lanes.by_row[s] : tile.lanes.by_column[s]) + tile.offset)
               : "memory");
  return {{r[0], r[any ? 1 : 2], r[any ? 2 : 1], r[3]}};
}
template <typename G, Side kSide = Side::kAny>
__device__ __forceinline__ Fragment load_turned_block(const TileAt& tile, int s) {
  const bool any = kSide == Side::kAny;
  uint32_t r[4];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"((any ? tile.lanes.by_column[s] : tile.lanes.by_row[s]) + tile.offset)
               : "memory");
  return {{r[0], r[any ? 1 : 2], r[any ? 2 : 1], r[3]}};
}
template <typename G, Side kSide = Side::kAny>
__device__ __forceinline__ void load(Fragments<G>& f, const TileAt& tile) {
#pragma unroll
  for (int s = 0; s < G::kBlocks; ++s) f[s] = load_block<G, kSide>(tile, s);
}
template <typename G, Side kSide = Side::kAny>
__device__ __forceinline__ void load_turned(Fragments<G>& f, const TileAt& tile) {
#pragma unroll
  for (int s = 0; s < G::kBlocks; ++s) f[s] = load_turned_block<G, kSide>(tile, s);
}

/// c = rows columns^T over all channels.
template <typename G>
__device__ __forceinline__ void make_products(Block& c, const Fragments<G>& rows,
                                              const Fragments<G>& columns) {
  begin_product(c, rows[0], columns[0]);
#pragma unroll
  for (int s = 1; s < G::kBlocks; ++s) add_product(c, rows[s], columns[s]);
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
#pragma unroll
  for (int s = 0; s < G::kBlocks; ++s)
    add_product(sum[s], a, load_turned_block<G, Side::kRight>(columns, s));
}

__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace fmmformer::cuda::whole
