// SPDX-License-Identifier: Apache-2.0
// Who does what, for causal heads of 32 channels in bf16: a thread block of four warps has a whole
// (batch entry, head) and walks it in chunks of 64 tokens; a warp owns sixteen rows of a chunk.
//
// Between two barriers a chunk has two phases. In the first a warp does the near field of its rows
// and makes feature rows of its own tokens, for all to see. In the second it does the far fields:
// products with the 64 tokens of the chunk and with the state before (or after) it, both operands
// of the whole warpgroup in shared memory; and it adds the chunk to its share of the state, a
// twelfth of 3 x 32 x 32 sums a block of sixteen by sixteen. That share, fp32, is all of the state
// in registers: where a warp has all of it, registers leave room for half as many warps.
#pragma once

#include "attention/fmm/cuda/async_copy.cuh"
#include "attention/fmm/cuda/narrow/launcher.cuh"
#include "attention/fmm/cuda/narrow/wgmma.cuh"
#include "attention/fmm/cuda/paper_maps.cuh"
#include "attention/fmm/cuda/tile.cuh"

namespace fmmformer::cuda::narrow {

constexpr int kWarps = 4, kThreads = kWarps * kWarpSize;
constexpr uint32_t kMemory = kSharedBegin;  // the address of a block's shared memory
constexpr int kTiles = kRows / kBlockDim;   // of a chunk
constexpr int kBlocks = kDim / kBlockDim;   // of channels
constexpr int kRowBytes = kDim * 2, kTileBytes = kBlockDim * kRowBytes,
              kChunkBytes = kRows * kRowBytes;
constexpr int kGroups = 3;  // of sixteen columns that a band may touch
constexpr int kBiasBytes = (2 * kGroups - 1) * kWarpSize * 8;  // see Band

using Rows = Block[kBlocks];          // sixteen rows of results
using Fragments = Fragment[kBlocks];  // sixteen rows as operands

enum Tensor { kQ, kK, kV, kOut, kGradOut, kDq, kDk, kDv, kTensors };
enum class Sweep { kForward, kQueries, kKeys, kBoth };

/// Where things lie in shared memory, in bytes. Operands of a warpgroup begin at multiples of 512.
template <int kMaps_, bool kDrops_, bool kUnit_, Sweep kSweep_>
struct Shape {
  static constexpr int kMaps = kMaps_, kFields = kMaps + 1;
  static constexpr bool kDrops = kDrops_;
  static constexpr bool kUnit = kUnit_;  // feature rows are divided by their sum
  static constexpr Sweep kSweep = kSweep_;
  static constexpr bool kForward = kSweep == Sweep::kForward, kOfKeys = kSweep == Sweep::kKeys;
  static constexpr int kOwnTensors = kForward ? 1 : 2;
  // Chunks in a ring: the one at hand, and the band's halo or the next. Of a warp's own rows: one;
  // forward, the next.
  static constexpr int kSlots = 2, kOwnSlots = kForward ? 2 : 1;
  // Rows of a map's state: one for each of v's channels; forward has eight more for the sums of
  // feature rows, see ForwardState::show.
  static constexpr int kStateBytes = (kForward ? kDim + 8 : kDim) * kRowBytes;

  static constexpr int kBand = 0;                                // [2][slots][rows]
  static constexpr int kOwn = kBand + 2 * kSlots * kChunkBytes;  // [kOwnTensors][own slots][rows]
  static constexpr int kFeatures = kOwn + kOwnTensors * kOwnSlots * kChunkBytes;  // [maps][rows]
  // Forward: sixteen rows whose first eight channels are 1 and 0 in turns, beside those of v for
  // the sums of scores: every lane of four has a row's sum.
  static constexpr int kUnits = kFeatures + kMaps * kChunkBytes;
  static constexpr int kStates = kUnits + (kForward ? kTileBytes : 0);  // [maps][kStateBytes]
  static constexpr int kBias = kStates + kMaps * kStateBytes;           // see Band
  static constexpr int kWeights = kBias + kBiasBytes;                   // float [fields][kDim]
  static constexpr int kThird = kWeights + kFields * kDim * 4;  // forward: see kept_features
  static constexpr int kOperands = kThird + (kForward ? 2 * kTileBytes : 0);
  // Backward: weights in bf16, and float [maps][kDim] and [tiles][maps][kDim].
  static constexpr int kSums = kOperands + (kForward ? 0 : kFields * kDim * 2);
  static constexpr int kTileSums = kSums + (kForward ? 0 : kMaps * kDim * 4);
  static constexpr int kBases =
      kTileSums + (kForward ? 0 : kTiles * kMaps * kDim * 4);    // see Sequence, copy_event
  static constexpr int kLive = kBases + kTensors * 8;            // likewise
  static constexpr int kDots = kLive + (kLongest / 32 + 4) * 4;  // float4 [maps][kRows / 2]
  // For queries, what forward left of the warp's rows: float [kNumbers][16], log_sum_exp and norms.
  // For keys, what queries left of the ring's rows: tile_record_floats.
  static constexpr int kNumbers = kForward ? 0 : kOfKeys ? 2 + 2 * kMaps : 1 + kMaps;
  static constexpr int kNumberBytes =
      kOfKeys ? tile_record_floats(kMaps) * 4 : kNumbers * kBlockDim * 4;
  static constexpr int kRowNumbers = kDots + (kOfKeys ? kMaps * kRows / 2 * 16 : 0);
  // Forward: what Entry has after the state; of this chunk and the one before.
  static constexpr int kKeptNumbers =
      (kRowNumbers + (kOfKeys ? kSlots : 1) * kTiles * kNumberBytes + 15) / 16 * 16;
  static constexpr int kKeptBytes = Entry::number_bytes(kMaps);
  static constexpr int kStage =  // of out
      (kKeptNumbers + (kForward ? 2 * kKeptBytes : 0) + 511) / 512 * 512;
  static constexpr int kBytes = kStage + (kForward ? kChunkBytes : 0);
  // Among them: log_sum_exp, for powers of 2 in records; norms or, in records, far_scale / norm;
  // row dots, those of maps with a minus; dropout's bits.
  static constexpr int kLogSumExp = 0, kNorms = 1, kNearDots = 1 + kMaps, kFarDots = 2 + kMaps,
                       kKept = 2 + 2 * kMaps;
  static_assert(kBytes <= kSharedBytes && kStates % 512 == 0 && kStateBytes % 512 == 0 &&
                kBases % 8 == 0);
};

/// Where a channel's number is among 32, if those of a lane of four are to lie side by side: of
/// channels 2t and 2t + 1 of every eight.
__device__ __forceinline__ int beside_quad(int channel) {
  return channel % 8 / 2 * 8 + channel / 8 * 2 + channel % 2;
}

/// Of a tile: where piece `piece`, eight channels, of a row is.
__device__ __forceinline__ uint32_t place(uint32_t row, uint32_t piece) {
  return row * kRowBytes + ((piece ^ (row >> 1 & 3)) << 4);
}
/// What a lane adds to a tile's address: for ldmatrix in the order of rows (operands of the left
/// side; turned, of the right one), and in that of columns (the other way round). Channels 16 to 31
/// are 32 bytes further, by exclusive or.
__device__ __forceinline__ uint32_t by_row(uint32_t lane) { return place(lane % 16, lane / 16); }
__device__ __forceinline__ uint32_t by_column(uint32_t lane) {
  return place(lane / 16 * 8 + lane % 8, lane / 8 % 2);
}

__device__ __forceinline__ Fragment load_matrix(uint32_t at) {
  Fragment f;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(f.r[0]), "=r"(f.r[1]), "=r"(f.r[2]), "=r"(f.r[3])
               : "r"(at)
               : "memory");
  return f;
}
__device__ __forceinline__ Fragment load_turned_matrix(uint32_t at) {
  Fragment f;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(f.r[0]), "=r"(f.r[1]), "=r"(f.r[2]), "=r"(f.r[3])
               : "r"(at)
               : "memory");
  return f;
}
/// In the order in which the right side wants its registers.
__device__ __forceinline__ Fragment of_right(const Fragment& f) {
  return {{f.r[0], f.r[2], f.r[1], f.r[3]}};
}
__device__ __forceinline__ void store_matrix(uint32_t at, const Fragment& f) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};\n" ::"r"(at),
               "r"(f.r[0]), "r"(f.r[1]), "r"(f.r[2]), "r"(f.r[3])
               : "memory");
}
/// The same of the transposed block.
__device__ __forceinline__ void store_turned_matrix(uint32_t at, const Fragment& f) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};\n" ::"r"(at),
               "r"(f.r[0]), "r"(f.r[2]), "r"(f.r[1]), "r"(f.r[3])
               : "memory");
}
/// Sixteen rows, both blocks of channels; `offset`: by_row(lane) or by_column(lane).
__device__ __forceinline__ void load_rows(Fragments& f, uint32_t tile, uint32_t offset) {
#pragma unroll
  for (int s = 0; s < kBlocks; ++s) f[s] = load_matrix(tile + (offset ^ s * 32));
}

template <typename T>
__device__ __forceinline__ T* shared_at(int offset) {
  return static_cast<T*>(__cvta_shared_to_generic(kMemory + offset));
}

/// Writes a number to shared memory where it is wanted, without a branch, which costs more than the
/// store.
__device__ __forceinline__ void store_shared_if(bool wanted, uint32_t to, Elem x) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p st.shared.b16 [%0], %1;\n}\n" ::"r"(to),
               "h"(*reinterpret_cast<const uint16_t*>(&x)), "r"(int(wanted))
               : "memory");
}
/// Of numbers that are not denormal, which __log2f looks for.
__device__ __forceinline__ float log2_of(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace fmmformer::cuda::narrow
