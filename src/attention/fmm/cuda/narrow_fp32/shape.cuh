// SPDX-License-Identifier: Apache-2.0
// Who does what, for causal heads of 32 channels in fp32: as in narrow/shape.cuh, a thread block
// has a whole (batch entry, head) and walks it in chunks of 64 tokens, in tiles of sixteen rows.
//
// There are two teams of four warps, a tile of the chunk each. Feeders (feeder.cuh) copy the next
// chunk, make this one's features and keep the state; walkers do the near field, which needs
// neither, and then the far fields, products with the chunk's 64 tokens and the state. They meet in
//
//   a barrier before a chunk      its rows are there, and what the chunk before left is not needed
//   leave_halo, await_halo        walkers are done with the rows beside the chunk
//   leave_features, await_...     features and state are there
//
// Numbers are pairs of fp16 numbers under powers of two, as in chunks_fp32/split.cuh: a product is
// three. Every tile has a power of its own, from its largest number: the warp that copied a tile
// splits it in place and asks nobody. Own rows, of which operands are made by one warp alone, stay
// as they are.
#pragma once

#include "attention/fmm/cuda/async_copy.cuh"
#include "attention/fmm/cuda/chunks_fp32/split.cuh"
#include "attention/fmm/cuda/narrow_fp32/launcher.cuh"
#include "attention/fmm/cuda/narrow_fp32/wgmma.cuh"
#include "attention/fmm/cuda/paper_maps.cuh"
#include "attention/fmm/cuda/tile.cuh"

namespace fmmformer::cuda::narrow_fp32 {

using chunks_fp32::add_part, chunks_fp32::joined, chunks_fp32::kHalfOnes, chunks_fp32::Left,
    chunks_fp32::load_pieces, chunks_fp32::load_turned_pieces, chunks_fp32::Right,
    chunks_fp32::split, chunks_fp32::split_result;

constexpr int kWarps = 4, kTeamThreads = kWarps * kWarpSize;  // of those who walk, or who feed
constexpr int kThreads = 2 * kTeamThreads;
constexpr int kTiles = kRows / kBlockDim;  // of a chunk
constexpr int kBlocks = kDim / kBlockDim;  // of channels
constexpr int kTileBytes = kBlockDim * kDim * 4, kChunkBytes = kTiles * kTileBytes;
constexpr int kEights = 1024;         // bytes of eight rows: their high parts and,
constexpr int kLowPart = 512;         // so much further, the low ones
constexpr int kNumberRow = kDim * 4;  // bytes of a row of own numbers, which stay as they are
constexpr int kSlots = 2;   // chunks in a ring: the one at hand, and the band's halo or the next
constexpr int kGroups = 3;  // of sixteen columns that a band may touch

using Rows = Block[kBlocks];  // sixteen rows of numbers

enum class Sweep { kForward, kQueries, kKeys };

/// Of a tile: s, where 2^s is what its numbers are multiplied with; and the same of its features.
struct Size {
  int shift, features;
};

/// Where things lie in shared memory, in bytes. Operands of a warpgroup begin at multiples of 1024.
template <int kMaps_, bool kDrops_, bool kUnit_, Sweep kSweep_>
struct Shape {
  static constexpr int kMaps = kMaps_, kFields = kMaps + 1;
  static constexpr bool kDrops = kDrops_;
  static constexpr bool kUnit = kUnit_;  // feature rows are divided by their sum
  static constexpr Sweep kSweep = kSweep_;
  static constexpr bool kForward = kSweep == Sweep::kForward, kOfKeys = kSweep == Sweep::kKeys;
  static constexpr int kOwnTensors = kForward ? 1 : 2;
  // Of a thread: as many as both teams' threads have at launch, 128 each.
  static constexpr int kWalkerRegisters = kOfKeys ? 168 : 160,
                       kFeederRegisters = 256 - kWalkerRegisters;
  static constexpr int kStateBytes = kDim * kDim * 4;  // a row for each of v's channels

  static constexpr int kBand = 0;                                // [2][slots][rows]
  static constexpr int kOwn = kBand + 2 * kSlots * kChunkBytes;  // [kOwnTensors][slots][rows]
  static constexpr int kFeatures = kOwn + kOwnTensors * kSlots * kChunkBytes;  // [maps][rows]
  static constexpr int kStates = kFeatures + kMaps * kChunkBytes;            // [maps][kStateBytes]
  static constexpr int kBias = kStates + kMaps * kStateBytes;                // see Band
  static constexpr int kWeights = kBias + 2 * kGroups * kWarpSize * 16;      // float [fields][kDim]
  static constexpr int kScaledWeights = kWeights + kFields * kDim * 4;       // the same, at most 1
  static constexpr int kWeightShifts = kScaledWeights + kFields * kDim * 4;  // int [4]: scaled by
  static constexpr int kSums = kWeightShifts + 16;                           // float [maps][kDim]
  static constexpr int kTileSums = kSums + kMaps * kDim * 4;            // float [tiles][maps][kDim]
  static constexpr int kSizes = kTileSums + kTiles * kMaps * kDim * 4;  // Size: see Sequence
  static constexpr int kStateMaxima = kSizes + 8 * (2 + kOwnTensors) * kSlots * kTiles;  // [2][4]
  static constexpr int kStateShifts = kStateMaxima + 32;                                 // int [4]
  static constexpr int kLive = kStateShifts + 16;  // see Sequence
  // For keys: dots of the chunk's queries with a minus, float [maps][kRows]; and shifts of query
  // features and of dots, int [maps][tiles] each.
  static constexpr int kDots = kLive + (kLongest / 32 + 4) * 4;
  static constexpr int kQueryShifts = kDots + (kOfKeys ? kMaps * kRows * 4 : 0);
  static constexpr int kDotShifts = kQueryShifts + (kOfKeys ? kMaps * kTiles * 4 : 0);
  // For queries, what forward left of the warp's rows: float [kNumbers][16], log_sum_exp and norms.
  // For keys, what queries left of the ring's rows: tile_record_floats.
  static constexpr int kRowNumbers = kDotShifts + (kOfKeys ? kMaps * kTiles * 4 : 0);
  static constexpr int kNumbers = kForward ? 0 : kOfKeys ? 2 + 2 * kMaps : 1 + kMaps;
  static constexpr int kNumberBytes =
      kOfKeys ? tile_record_floats(kMaps) * 4 : kNumbers * kBlockDim * 4;
  // Dropout's bits for the own rows of a chunk, a word a lane.
  static constexpr int kBits = kRowNumbers + kSlots * kTiles * kNumberBytes;
  static constexpr int kBytes = kBits + (kDrops && !kOfKeys ? kSlots * kTiles * kWarpSize * 4 : 0);
  // Among them: log_sum_exp, for powers of 2 in records; norms or, in records, far_scale / norm;
  // row dots, those of maps with a minus; dropout's bits.
  static constexpr int kLogSumExp = 0, kNorms = 1, kNearDots = 1 + kMaps, kFarDots = 2 + kMaps,
                       kKept = 2 + 2 * kMaps;
  static_assert(kBytes <= kSharedBytes && kStates % 1024 == 0 && kRowNumbers % 16 == 0);
};

/// Scaled numbers are below 2^kTop; products of rows of 32 of them below 2^(2 kTop + 5), and
/// 2^-kDown brings those below 2^kTop again.
constexpr int kTop = 15, kDown = kTop + 5;
/// 2^shift, as near as fp32 has it.
__device__ __forceinline__ float power_of_2(int shift) {
  return __int_as_float((min(max(shift, -126), 127) + 127) << 23);
}
/// The shift for numbers that are at most `largest`. Infinity says nothing of the others.
__device__ __forceinline__ int shift_for(float largest) {
  const int exponent = __float_as_int(largest) >> 23;
  return exponent == 255 ? 0 : min(kTop + 126 - exponent, 110);
}
/// Of a tile whose largest number, without a sign, is `most`: a feature is at most 1 + max(1, |x|).
__device__ __forceinline__ Size size_for(float most) {
  return {shift_for(most), shift_for(1.f + fmaxf(1.f, most))};
}
/// The largest of a warp's numbers, none of which is negative: they have the order of their bits.
__device__ __forceinline__ float warp_max(float x) {
  return __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(x)));
}

/// Of a tile: where piece `piece`, the high parts of eight channels, of a row is.
__device__ __forceinline__ uint32_t place(int row, int piece) {
  return row / 8 * kEights + row % 8 * 64 + ((piece ^ (row >> 1 & 3)) << 4);
}
/// What a lane adds to a tile's address, for ldmatrix in the order of rows (operands of the left
/// side; turned, of the right one), and in that of columns (the other way round). Channels 16 to 31
/// are 32 bytes further, by exclusive or.
__device__ __forceinline__ uint32_t by_row(int lane) { return place(lane % 16, lane / 16); }
__device__ __forceinline__ uint32_t by_column(int lane) {
  return place(lane / 16 * 8 + lane % 8, lane / 8 % 2);
}
/// Operands from there.
template <typename Operand>
__device__ __forceinline__ Operand load_operand(uint32_t at) {
  Operand x;
  load_pieces(x.high, at), load_pieces(x.low, at + kLowPart);
  return x;
}
template <typename Operand>
__device__ __forceinline__ Operand load_turned_operand(uint32_t at) {
  Operand x;
  load_turned_pieces(x.high, at), load_turned_pieces(x.low, at + kLowPart);
  return x;
}
__device__ __forceinline__ void store_pieces(uint32_t at, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};\n" ::"r"(at),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}
__device__ __forceinline__ void store_operand(uint32_t at, const Left& x) {
  store_pieces(at, x.high), store_pieces(at + kLowPart, x.low);
}

/// c += a b^T; the small terms first.
__device__ __forceinline__ void add_product(Block& c, const Left& a, const Right& b) {
  add_part(c, a.low, b.high), add_part(c, a.high, b.low), add_part(c, a.high, b.high);
}
template <typename T>
__device__ __forceinline__ T* shared_at(int offset) {
  extern __shared__ __align__(1024) unsigned char dynamic_memory[];
  return reinterpret_cast<T*>(dynamic_memory + offset);
}

__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace fmmformer::cuda::narrow_fp32
