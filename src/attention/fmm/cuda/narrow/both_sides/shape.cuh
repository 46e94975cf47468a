// SPDX-License-Identifier: Apache-2.0
// Who does what, for gradients of both sides in one walk from the last chunk to the first: a thread
// block of two warpgroups has a (batch entry, head), and warp w of either has tile w of the chunk,
// as queries or as keys. Of a chunk they make, in this order:
//
//            queries                                     keys
//   1   the band: dq, probabilities, gradients        feature rows of keys
//   2   feature rows of queries                       the band: dk, dv
//   3   far fields: dq, row dots                      far fields: dv
//   4   the state after the chunk                     far fields: dk
//
// Either side waits only for what it needs of the other (Barrier), so that queries are a step ahead
// with the next chunk's band.
// Forward kept the state before each chunk, and numbers of its rows (Entry). What the band's keys
// need of its queries, probabilities and gradients of scores, comes turned from the queries.
#pragma once

#include "attention/fmm/cuda/barrier.cuh"
#include "attention/fmm/cuda/narrow/near.cuh"
#include "attention/fmm/cuda/narrow/row_copies.cuh"

namespace fmmformer::cuda::narrow::both_sides {

constexpr int kBlockThreads = 2 * kThreads, kBlocksOfSm = 2;
/// Barriers at which one side arrives and the other waits; the last is the queries' own. What has
/// happened, and what the one who waits may therefore do:
enum Barrier {
  // Of the queries.
  kPartsMade = 1,  // the band's; k and v have come: keys may read them and ask for the next rows
  kQueriesShown,   // features, and the state after the chunk
  kDotsMade,       // and keys' features are read: keys may have their results there
  // Of the keys.
  kKeysShown,  // features; the band's rows are read, q and grad_out seen: queries may ask for more
  kPartsRead,  // the band's, and the next k and v have come: queries may go on with those
  kQueriesRead,  // features, dots, the state and sums of later queries: there may be others
  kStateRead     // the one before the chunk: the next may come
};
constexpr int kNearTiles = kTiles + kGroups - 1;
constexpr int kPartBytes = kBlockDim * kBlockDim * 2;  // sixteen keys of sixteen queries

/// Where things lie in shared memory, in bytes.
template <int kMaps_, bool kDrops_, bool kUnit_>
struct Shape {
  static constexpr int kMaps = kMaps_, kFields = kMaps + 1;
  static constexpr bool kDrops = kDrops_, kUnit = kUnit_;
  static constexpr Sweep kSweep = Sweep::kBoth;
  static constexpr bool kForward = false, kOfKeys = false;
  static constexpr int kOwnTensors = 2;
  // k, v: the chunk at hand, the one before, the next on its way. q, grad_out: the one after, too,
  // of which two tiles are enough: the others are where dq is staged.
  static constexpr int kSlots = 3, kOwnSlots = 3;
  static constexpr int kStateBytes = kDim * kRowBytes, kNumberBytes = 0, kRowNumbers = 0;
  static constexpr int kLogSumExp = 0;

  static constexpr int kBand = 0;                                    // [2][slots][rows]: k, v
  static constexpr int kOwn = kBand + 2 * kSlots * kChunkBytes;      // ... : q, grad_out
  static constexpr int kFeatures = kOwn + 2 * kSlots * kChunkBytes;  // of keys: [maps][rows]
  static constexpr int kQueries = kFeatures + kMaps * kChunkBytes;   // of queries, scaled
  static constexpr int kStates = kQueries + kMaps * kChunkBytes;     // after: [maps][kStateBytes]
  static constexpr int kBefore = kStates + kMaps * kStateBytes;      // before: see Entry
  // For dk and dv: features of two maps, of use to no one any more; of one map they are too few.
  static constexpr int kAfterStates = kBefore + kMaps * Entry::kStateBytes;
  static constexpr int kKeyStage = kMaps > 1 ? kFeatures : kAfterStates;
  static constexpr int kNear =
      kAfterStates + (kMaps > 1 ? 0 : 2 * kChunkBytes);  // [kNearTiles][2][groups]
  static constexpr int kBias = kNear + kNearTiles * 2 * kGroups * kPartBytes;  // see Band
  static constexpr int kWeights = kBias + 2 * kGroups * kWarpSize * 16;        // see load_weights
  static constexpr int kOperands = kWeights + kFields * kDim * 4;
  // What Entry has after the state, in its order: what the far fields want; and the band, for this
  // chunk and the next.
  static constexpr int kFactors = kOperands + kFields * kDim * 2;
  static constexpr int kLogSums = kFactors + kMaps * Entry::kRowBytes;
  static constexpr int kBits = kLogSums + 2 * Entry::kRowBytes;
  static constexpr int kSums = kBits + 2 * Entry::kBitBytes;  // of queries times dots: two
  static constexpr int kDots = kSums + 2 * kMaps * kDim * 4;  // Elem [maps][kRows]
  static constexpr int kBases = kDots + kMaps * kRows * 2;    // see Event
  static constexpr int kLive = kBases + kTensors * 8;         // see Sequence
  static constexpr int kWeightSums = kLive + (kLongest / 32 + 4) * 4;
  static constexpr int kBytes = kWeightSums + kWarps * kFields * kDim * 4;
  static_assert(kBytes <= kBothSidesBytes && kStates % 512 == 0 && kBefore % 512 == 0 &&
                kKeyStage % 512 == 0 && kBases % 8 == 0);
};

/// What arrives: rows of k and v; of q and grad_out, with numbers for the band; what forward kept
/// for the far fields.
enum Event { kKeyRows, kQueryRows, kFarEntry };

/// Scaled feature rows of the chunk's queries.
template <typename G>
__device__ __forceinline__ uint32_t query_features(const Sequence<G>& at, int map) {
  return at.memory + G::kQueries + map * kChunkBytes;
}
/// far_scale / norm of the warp's rows g and g + 8; 0 for dead ones.
template <typename G>
__device__ __forceinline__ void load_factors(const Sequence<G>& at, int map, float (&factor)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r)
    factor[r] = shared_at<float>(G::kFactors)[map * kRows + at.warp * kBlockDim + at.row(2 * r)];
}
/// Dots, with a minus, of a tile's queries 2t and 2t + 1 or, `upper`, 8 and 9 later.
template <typename G>
__device__ __forceinline__ uint32_t dot_pair(const Sequence<G>& at, int map, int tile, int upper) {
  return shared_at<uint32_t>(G::kDots)[map * (kRows / 2) + tile * 8 + upper * 4 + at.quad()];
}
/// Sums of later queries' feature rows times dots, [maps][kDim], as of a chunk.
template <typename G>
__device__ __forceinline__ float* later_sums(const Sequence<G>& at, int chunk) {
  return at.sums(0) + (chunk & 1) * G::kMaps * kDim;
}

/// The band's parts of a tile of queries, counted from the chunk's first: probabilities or the
/// gradients of scores with a group of keys, keys as rows. Eight keys of eight queries are 128
/// bytes.
enum class Part { kProbabilities, kGradients };
template <typename G>
__device__ __forceinline__ uint32_t near_part(const Sequence<G>& at, int tile, Part part,
                                              int group) {
  static_assert(kTiles == 4 && kNearTiles == 6);
  const int first = at.ring == 0 ? 0 : 6 - 2 * at.ring;  // 4 chunk mod 6
  const int slot = first + tile < 6 ? first + tile : first + tile - 6;
  return at.memory + G::kNear + ((slot * 2 + int(part)) * kGroups + group) * kPartBytes;
}
__device__ __forceinline__ void store_part(uint32_t part, uint32_t lane, const Fragment& f) {
  const uint32_t matrix = lane / 8, key = key_of(matrix / 2, lane % 8);
  const uint32_t to = part + (matrix % 2 * 2 + key / 8) * 128 + key % 8 * 16;
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};\n" ::"r"(to),
               "r"(f.r[0]), "r"(f.r[1]), "r"(f.r[2]), "r"(f.r[3])
               : "memory");
}
__device__ __forceinline__ Fragment load_part(uint32_t part, uint32_t lane) {
  return load_matrix(part + lane * 16);
}

}  // namespace fmmformer::cuda::narrow::both_sides
