// SPDX-License-Identifier: Apache-2.0
// Who does what for heads of up to 128 channels: warps own channels, not rows.
//
// A chunk has 32 tokens, and a pass one map. When its rows are split, the work on a chunk has two
// phases, with a barrier between them:
//
// - Scores and the state. Two tiles of sixteen tokens have up to three groups of sixteen columns
//   each: four warps have a tile, and each of them blocks of 16 x 16 scores of its own. Such a
//   block goes to shared memory as an operand, in the order of registers. Meanwhile every warp
//   multiplies the chunk's rows with the state and adds the chunk to it: it has sixteen rows of the
//   state, S^T or S, in registers, which serve as the right operand as they are.
// - Results. A warp has sixteen channels of all 32 tokens: scores times raw rows or features.
//
// With warps that own rows, as for 64 channels, four of them would form the same probabilities, and
// the state, split, would go to shared memory and come back for every 32 tokens.
#pragma once

#include "attention/fmm/cuda/chunks_fp32/shape.cuh"

namespace fmmformer::cuda::chunks_fp32 {

template <bool kFull>
struct WideHeads : Shape<128, 1, kFull, /*kShares=*/false> {};
using Wide = WideHeads<true>;  // where it does not matter, as in shared memory

constexpr int kOperand = 2 * kWarpSize * 4;  // numbers of a block of 16 x 16 pairs

/// Where things lie in shared memory, in numbers.
template <bool kFull, Sweep kSweep>
struct Memory<WideHeads<kFull>, kSweep> {
  using G = WideHeads<kFull>;
  static constexpr bool kSums = false, kOfQueries = kSweep == Sweep::kKeys;
  static constexpr int kOwnTensors = kSweep == Sweep::kForward ? 1 : 2;
  static constexpr bool kOwnIsNear = kSweep == Sweep::kForward;
  static constexpr bool kHasOwnFeatures = kSweep != Sweep::kQueries;
  static constexpr int kNumberCount = kOfQueries ? 2 * G::kFields : 0;
  static constexpr int kRing = 2 * G::kTiles + kHalo;

  static constexpr int kBand = 0;                                  // [2][kRing] tiles
  static constexpr int kOwn = kBand + 2 * kRing * G::kTile;        // [kOwnTensors][kTiles]
  static constexpr int kFeatures = kOwn + kOwnTensors * G::kArea;  // [kTiles]
  static constexpr int kOwnFeatures = kFeatures + G::kArea;        // [kTiles]
  static constexpr int kOperands = kOwnFeatures + (kHasOwnFeatures ? G::kArea : 0);
  static constexpr int kOperandCount = G::kTiles * (kSweep == Sweep::kKeys ? 10 : 5);
  // The key sweep alone: half of the state, as operands of the warps that own values' channels.
  static constexpr int kState = kOperands + kOperandCount * kOperand;
  static constexpr int kStateSize =
      kSweep == Sweep::kKeys ? G::kBlocks * G::kBlocks / 2 * kOperand : 0;
  static constexpr int kKeySums = kState + kStateSize;      // [kDim]
  static constexpr int kScaling = kKeySums + G::kDim;       // see scaling.cuh
  static constexpr int kNumbers = kScaling + kScalingSize;  // [kNumberCount][kRing][16]
  static constexpr int kDotPairs = kNumbers + kNumberCount * kRing * kBlockDim;  // [kChunk]
  // [log_sum_exp, normaliser][kChunk] of own rows; in the forward sweep <f, z>, and f's shift
  static constexpr int kOwnNumbers = kDotPairs + (kOfQueries ? G::kChunk : 0);
  static constexpr int kOwnNumberCount = kOfQueries ? 0 : 2;
  static constexpr int kNorms = kOwnNumbers + kOwnNumberCount * G::kChunk;  // [kChunk], of queries
  // [2][kChunk]: what results of the far field are multiplied with, and queries' dots
  static constexpr int kRowFactors = kNorms + (kSweep == Sweep::kQueries ? G::kChunk : 0);
  // What warps tell one another: [kTiles][8][16] of scores, or [kWarps][kChunk] of results.
  static constexpr int kExchange = kRowFactors + 2 * G::kChunk;
  static constexpr int kExchangeSize = kWarps * G::kChunk;
  static_assert(kExchangeSize >= G::kTiles * 8 * kBlockDim);
  static constexpr int kBytes = (kExchange + kExchangeSize) * int(sizeof(float));
};

}  // namespace fmmformer::cuda::chunks_fp32
