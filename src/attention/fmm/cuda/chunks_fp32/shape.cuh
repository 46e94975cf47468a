// SPDX-License-Identifier: Apache-2.0
// Who does what, for causal heads in fp32: a thread block of eight warps walks chunks of 64 tokens
// (up to 64 channels) or 32 (up to 128). Of the latter, this is about sums of states; their sweeps
// are in wide/.
//
// A block has a segment of one (batch entry, head). A warp owns sixteen rows of the chunk and 32 of
// their channels of results, so that two warps, slices, have the same rows. They share the
// work of their scores, where there is room to exchange them. Raw rows, features and the state are
// in shared memory as pairs of fp16 numbers (split.cuh), split once a chunk by all threads; every
// warp has its own part of the state in fp32 as well, in registers, and adds to it there. Where
// there are feeders (feeder.cuh), eight more warps split the next chunk meanwhile.
//
// Blend weights are one number a head here, so that near field and all maps are one matrix of
// scores before it meets v.
#pragma once

#include "attention/fmm/cuda/barrier.cuh"
#include "attention/fmm/cuda/chunks_fp32/launcher.cuh"
#include "attention/fmm/cuda/fewer_channels.cuh"
#include "attention/fmm/cuda/fragment.cuh"
#include "attention/fmm/cuda/tile.cuh"

namespace fmmformer::cuda::chunks_fp32 {

constexpr int kWarps = 8, kThreads = kWarps * kWarpSize;
constexpr int kFeeders = kThreads;      // threads beside them, where they are fed (feeder.cuh)
constexpr int kSchedulers = 4;          // of a multiprocessor; warp w belongs to w % kSchedulers
constexpr int kHalo = 2;                // tiles of a neighbour that a band may reach
constexpr int kBandGroups = kHalo + 1;  // of sixteen columns that a band may touch
constexpr int kSlice = 32;              // channels of a warp's results
constexpr int kSliceBlocks = kSlice / kBlockDim;
constexpr int kEight = 8;  // numbers whose high parts lie together, and the low ones
constexpr int kPiece = 4;  // numbers that a thread copies and splits at once
static_assert(kFarthest == kHalo * kBlockDim);

/// What is known at compile time: room for D = Dv = kDim, how many maps a pass has, and whether the
/// slices of sixteen rows share the work of scores; kFull: whether heads have all the channels that
/// there is room for, see fewer_channels.cuh; kFed: whether other warps prepare the next chunk.
template <int kDim_, int kMaps_, bool kFull_, bool kShares_, bool kFed_ = false>
struct Shape {
  static constexpr bool kFull = kFull_;
  static constexpr int kDim = kDim_, kMaps = kMaps_, kFields = kMaps + 1;
  static constexpr int kTiles = PassShape<kDim>::kTiles, kChunk = PassShape<kDim>::kChunk;
  static constexpr int kBlocks = kDim / kBlockDim;  // of channels
  // The third of the paper's maps; a pass of wide heads has any one of them.
  static constexpr bool kMayHaveTanh = kDim > 64 || kMaps == 3;
  static constexpr int kSlices = kDim / kSlice;
  static_assert(kTiles * kSlices == kWarps);
  static constexpr int kGroups = kTiles > kBandGroups ? kTiles : kBandGroups;  // of columns
  static constexpr bool kShares = kShares_;
  static constexpr int kSharers = kShares ? kSlices : 1;
  static constexpr bool kFed = kFed_;
  static constexpr int kBlockThreads = kThreads + (kFed ? kFeeders : 0);
  // In shared memory, in numbers. Rows are padded so that eight of them lie in different banks.
  static constexpr int kRow = kDim + 4, kTile = kBlockDim * kRow, kArea = kTiles * kTile;
};

constexpr int kScalingSize = 116;  // numbers

__device__ __forceinline__ float* shared_at(int offset) {
  extern __shared__ __align__(128) float dynamic_memory[];
  return dynamic_memory + offset;
}

/// Where things lie in a sweep's shared memory, in numbers.
template <typename G_, Sweep kSweep>
struct Memory {
  using G = G_;
  static constexpr bool kSums = kSweep == Sweep::kSumOfKeys || kSweep == Sweep::kSumOfQueries;
  static constexpr bool kOfQueries = kSweep == Sweep::kKeys || kSweep == Sweep::kSumOfQueries;
  static constexpr int kOwnTensors = kSums ? 0 : kSweep == Sweep::kForward ? 1 : 2;
  // Features (and dots) of this chunk and, where others prepare it, of the next.
  static constexpr int kFeatureSets = G::kFed ? 2 : 1;
  // Whether own rows are raw operands of the near field alone.
  static constexpr bool kOwnIsNear = false;
  // Numbers of a row that come with it: log_sum_exp, normalisers, the maps' dots, the near one.
  static constexpr int kNumberCount = kOfQueries ? 2 * G::kFields : 0;

  // Tiles of a ring: the chunk, the next one, and the halo; or the next two.
  static constexpr int kRing = kSums ? 3 * G::kTiles : 2 * G::kTiles + kHalo;
  static constexpr int kBand = 0;  // [2][kRing] tiles
  // [2][kTiles] tiles. Features of own rows, map by map, are where the second tensor was, if any.
  static constexpr int kOwn = kBand + 2 * kRing * G::kTile;
  static constexpr int kFeatures = kOwn + (kSums ? 0 : 2 * G::kArea);
  static constexpr int kFeatureSet = G::kMaps * G::kArea;                // [kMaps][kTiles] tiles
  static constexpr int kState = kFeatures + kFeatureSets * kFeatureSet;  // [kMaps][kDim][kDim]
  static constexpr int kStateOfMap = G::kDim * G::kDim;
  static constexpr int kKeySums = kState + (kSums ? 0 : G::kMaps * kStateOfMap);  // [kMaps][kDim]
  static constexpr int kScaling = kKeySums + G::kMaps * G::kDim;                  // see scaling.cuh
  static constexpr int kNumbers = kScaling + kScalingSize;  // [kNumberCount][kRing][16]
  static constexpr int kDotPairs = kNumbers + kNumberCount * kRing * kBlockDim;
  // [kFeatureSets][kMaps][kChunk] pairs: dots of the chunk's rows
  static constexpr int kDotSet = G::kMaps * G::kChunk;
  static constexpr int kExchange = kDotPairs + (kOfQueries ? kFeatureSets * kDotSet : 0);
  static constexpr int kExchangeSize = G::kFields * kWarps * kBlockDim;  // of the query sweep
  // [log_sum_exp, then the maps' normalisers][kChunk]: of own rows; in the forward sweep <f, z>,
  // and the shift of f
  static constexpr int kOwnNumbers = kExchange + (kSweep == Sweep::kQueries ? kExchangeSize : 0);
  static constexpr int kOwnNumberCount = kSweep == Sweep::kQueries   ? G::kFields
                                         : kSweep == Sweep::kForward ? 2
                                                                     : 0;
  // [2][kTiles][kGroups] blocks of scores, on their way between slices
  static constexpr int kScores = kOwnNumbers + kOwnNumberCount * G::kChunk;
  static constexpr int kScoresSize = G::kTiles * G::kGroups * kBlockDim * kBlockDim;
  static constexpr int kBytes =
      (kScores + (G::kShares && !kSums ? 2 * kScoresSize : 0)) * int(sizeof(float));
};

/// The chunks [begin, end) that a thread block walks, and what a warp has to do there.
template <typename G>
struct Place {
  int pair, b, h, segment;
  int begin, end;
  int warp, tile, slice;  // tile: of the chunk, the rows of this warp
  mutable int turn = 0;   // which half of Memory::kScores comes next

  __device__ explicit Place(const SweepArgs& args) {
    pair = blockIdx.x / args.segments, segment = blockIdx.x % args.segments;
    b = pair / args.heads, h = pair % args.heads;
    begin = segment_begin(args, segment) / G::kChunk;
    end = (segment_begin(args, segment + 1) + G::kChunk - 1) / G::kChunk;
    // The same in every lane, as the compiler sees from the shuffle.
    warp = __shfl_sync(~0u, threadIdx.x / kWarpSize, 0);
    slice = warp / G::kTiles, tile = warp % G::kTiles;
    // The last rows see the most columns: no scheduler has two warps with them.
    if (warp >= kSchedulers) tile = G::kTiles - 1 - tile;
  }
  /// Of one of `fields` numbers that every row has, [pairs, fields, length].
  __device__ int64_t row_index(const SweepArgs& args, int fields, int field) const {
    return (int64_t(pair) * fields + field) * args.length;
  }
  /// Keeps the compiler from computing addresses before the walk: those of a step are cheaper than
  /// the registers that would hold them.
  __device__ __forceinline__ void forget() { asm volatile("" : "+r"(pair), "+r"(b), "+r"(h)); }
  /// Waits for the other warps with the same rows.
  __device__ __forceinline__ void meet_slices() const {
    named_barrier(1 + tile, G::kSlices * kWarpSize);
  }
  /// Waits for all who walk, or who copy and split rows.
  __device__ __forceinline__ void meet_walkers() const {
    G::kFed ? named_barrier(1 + G::kTiles, kThreads) : __syncthreads();
  }
  __device__ __forceinline__ void meet_copiers() const {
    G::kFed ? named_barrier(2 + G::kTiles, kFeeders) : __syncthreads();
  }
};

}  // namespace fmmformer::cuda::chunks_fp32
