// SPDX-License-Identifier: Apache-2.0
// Who does what, for gradients of both sides in one walk from the last chunk to the first: a thread
// block of two warpgroups has a (batch entry, head), then perhaps another of the same head, and
// warp w of either has tile w of the chunk, as queries or as keys. Of a chunk they make, in this
// order:
//
//            queries                                     keys
//   1   the band: dq, probabilities, gradients        feature rows of keys and queries
//   2   far fields: dq, row dots, inner products      the band: dk, dv
//   3   the state after the chunk                     far fields: dv and dk, a map behind
//
// Either side waits only for what it needs of the other (Barrier), so that queries are a step ahead
// with the next chunk's band.
// Forward kept the state before each chunk, and numbers of its rows (Entry). What keys need of
// queries comes turned from them: the band's probabilities and gradients of scores, and the far
// fields' inner products (dO w) v^T of a chunk's queries and keys.
#pragma once

#include "attention/fmm/cuda/barrier.cuh"
#include "attention/fmm/cuda/narrow/near.cuh"
#include "attention/fmm/cuda/narrow/row_copies.cuh"

namespace fmmformer::cuda::narrow::both_sides {

constexpr int kBlockThreads = 2 * kThreads;
/// Barriers at which one side arrives and the other waits. What has happened, and what the one who
/// waits may therefore do:
enum Barrier {
  // Of the queries.
  kRowsCleared = 1,  // of dead tokens; nothing of the chunk after is read: keys may make features
  kPartsMade,        // the band's; k and v have come: keys may read them and ask for the next rows
  kStateShown,       // after the chunk
  kInnerMade,        // a map's inner products and dots, and keys' features are read: one a map
  // Of the keys.
  kKeysShown = kInnerMade + kMapsAtOnce,  // features; the band's rows are read, q and grad_out
                                          // seen: queries may ask for more
  kFeaturesMade,                          // of queries
  kPartsTaken,                            // the band's: there may be inner products instead
  kInnerRead,   // inner products, and the next k and v have come: queries may go on with those
  kStateTaken,  // the one after the chunk: there may be another
  // Of the queries alone.
  kStateRead  // the one before the chunk: the next may come
};
constexpr int kPartBytes = kBlockDim * kBlockDim * 2;  // sixteen keys of sixteen queries
constexpr int kCarried = 3;  // groups that the chunk's queries see of the chunk before
constexpr int kNinthBytes = 8 * kBlockDim * 2;

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
  // ... and before: see Entry. Products of two maps read a chunk of the former if there is but one.
  static constexpr int kBefore = kStates + (kMaps > 1 ? kMaps * kStateBytes : kChunkBytes);
  // For dk and dv: features of two maps, of use to no one any more; of one map they are too few.
  static constexpr int kAfterStates = kBefore + kMaps * Entry::kStateBytes;
  static constexpr int kKeyStage = kMaps > 1 ? kFeatures : kAfterStates;
  static constexpr int kNear =
      kAfterStates + (kMaps > 1 ? 0 : 2 * kChunkBytes);  // [kTiles][2][groups]: see near_part
  static constexpr int kCarriedParts =                   // [2][2][kCarried]
      kNear + kTiles * 2 * kGroups * kPartBytes;
  static constexpr int kBias = kCarriedParts + 2 * 2 * kCarried * kPartBytes;  // see Band
  static constexpr int kWeights = kBias + kBiasBytes;                          // see keep_weight
  static constexpr int kOperands = kWeights + kFields * kDim * 4;
  // What Entry has after the state, in its order: what the far fields want; and the band, for this
  // chunk and the next.
  static constexpr int kFactors = kOperands + kFields * kDim * 2;
  static constexpr int kLogSums = kFactors + kMaps * Entry::kRowBytes;
  static constexpr int kBits = kLogSums + 2 * Entry::kRowBytes;
  static constexpr int kSums = kBits + 2 * Entry::kBitBytes;   // see later_sums
  static constexpr int kDots = kSums + 2 * kMaps * kDim * 4;   // see Dots
  static constexpr int kTriangle = kDots + kMaps * kRows * 2;  // see fill_operands_of_ones
  static constexpr int kNinth = kTriangle + (2 * kTiles - 1) * kPartBytes;
  static constexpr int kBases = kNinth + kNinthBytes;  // see Event
  static constexpr int kLive = kBases + kTensors * 8;  // see Sequence
  static constexpr int kWeightSums =  // when the walk is over, in place of v: see show_weight_sums
      kBand + kSlots * kChunkBytes;
  static constexpr int kBytes = kLive + (kLongest / 32 + 4) * 4;
  static_assert(kBytes <= kBothSidesBytes && kStates % 512 == 0 && kBefore % 512 == 0 &&
                kKeyStage % 512 == 0 && kBases % 8 == 0);
};

/// The walk: from a pair's last chunk to its first, and on to the block's next pair.
template <typename G>
struct Walk : Sequence<G> {
  const int pairs, to_next_b, to_next_pair;
  bool of_keys;
  int turn = 0;  // of events: chunks so far

  __device__ __forceinline__ explicit Walk(const SweepArgs& args)
      : Sequence<G>(args),
        pairs(static_cast<int>(args.batch) * args.heads),
        to_next_b(gridDim.y * gridDim.z),
        to_next_pair(to_next_b * args.heads) {
    of_keys = this->warp >= kWarps;
    this->warp %= kWarps;
    this->begin_at(this->chunks - 1);
  }
  __device__ __forceinline__ bool is_first() const { return this->chunk == this->chunks - 1; }
  __device__ __forceinline__ bool is_last() const { return this->chunk == 0; }
  __device__ __forceinline__ bool has_next_pair() const {
    return this->pair + to_next_pair < pairs;
  }
  /// Whether a chunk follows.
  __device__ __forceinline__ bool goes_on() const { return !is_last() || has_next_pair(); }
  __device__ __forceinline__ void go_on() {
    ++turn;
    const bool in_pair = !is_last();
    this->step_back();
    if (in_pair) return;
    this->chunk = this->chunks - 1;
    this->b += to_next_b, this->pair += to_next_pair;
  }
  /// The chunk that follows, of rows that are asked for before.
  __device__ __forceinline__ int next_chunk() const {
    return is_last() ? this->chunks - 1 : this->chunk - 1;
  }
  __device__ __forceinline__ int next_b() const {
    return is_last() ? this->b + to_next_b : this->b;
  }
  __device__ __forceinline__ const unsigned char* next_entry() const {
    const int64_t pair = is_last() ? this->pair + to_next_pair : this->pair;
    return this->args.chunk_states + (pair * this->chunks + next_chunk()) * Entry::bytes(G::kMaps);
  }
};

/// What arrives: rows of k and v; of q and grad_out, with numbers for the band; what forward kept
/// for the far fields.
enum Event { kKeyRows, kQueryRows, kFarEntry };

/// Scaled feature rows of the chunk's queries.
template <typename G>
__device__ __forceinline__ uint32_t query_features(const Sequence<G>& at, int map) {
  return kMemory + G::kQueries + map * kChunkBytes;
}
/// far_scale / norm of the warp's rows g and g + 8; 0 for dead ones.
template <typename G>
__device__ __forceinline__ void load_factors(const Sequence<G>& at, int map, float (&factor)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r)
    factor[r] = shared_at<float>(G::kFactors)[map * kRows + at.warp * kBlockDim + at.row(2 * r)];
}
/// A map's dots, with a minus, of a chunk's queries: of those that a lane of four has in a product,
/// sixteen side by side, [4][tiles][2][2].
struct Dots {
  uint4 of_tiles[2];

  template <typename G>
  __device__ __forceinline__ Dots(const Sequence<G>& at, int map) {
    const uint4* mine = shared_at<uint4>(G::kDots) + (map * 4 + at.quad()) * 2;
    of_tiles[0] = mine[0], of_tiles[1] = mine[1];
  }
  /// Of a tile's queries 2t and 2t + 1 or, `upper`, 8 and 9 later.
  __device__ __forceinline__ uint32_t pair(int tile, int upper) const {
    const uint4& both = of_tiles[tile / 2];
    return tile % 2 ? (upper ? both.w : both.z) : (upper ? both.y : both.x);
  }
  /// Where that of the lane's query is or, `upper`, of the one eight later.
  template <typename G>
  static __device__ __forceinline__ uint32_t place(const Sequence<G>& at, int map, uint32_t upper) {
    const uint32_t row = at.row(0);
    return kMemory + G::kDots +
           (map * kRows + row / 2 * kBlockDim + at.warp * 4 + upper * 2 + row % 2) * 2;
  }
};
/// Sums of later queries' feature rows times dots, [maps][kDim], as of a chunk.
template <typename G>
__device__ __forceinline__ float* later_sums(const Sequence<G>& at, int chunk) {
  return at.sums(0) + (chunk & 1) * G::kMaps * kDim;
}

/// Left operands of ones and zeros, of products that sum rows up. In shared memory
/// there are sixteen rows and columns cut at the diagonal, three such tiles of zeros before and
/// three of ones after them: of any four that follow each other the first is of a chunk's first
/// queries. After them, eight rows in which two of sixteen columns are ones.
///
/// Which of a tile's keys the chunk's queries see.
template <typename G>
__device__ __forceinline__ uint64_t seen_keys(const Sequence<G>& at, int tile) {
  constexpr int kEightRows = 8 * kBlockDim * 2;
  return left_operand(kMemory + G::kTriangle, kEightRows) + (kTiles - 1 - tile) * (kPartBytes >> 4);
}
/// For all queries, the ninth and tenth row of sixteen.
template <typename G>
__device__ __forceinline__ uint64_t ninth_and_tenth(const Sequence<G>& at) {
  return left_operand(kMemory + G::kNinth, /*to_next_rows=*/0);
}
/// By all threads, sixteen bytes each; show_to_warpgroup and a barrier must follow.
template <typename G>
__device__ __forceinline__ void fill_operands_of_ones() {
  constexpr int kOfTriangle = (2 * kTiles - 1) * kPartBytes / 16, kOfNinth = kNinthBytes / 16;
  static_assert(kOfTriangle + kOfNinth <= kBlockThreads);
  const int i = threadIdx.x;
  if (i < kOfTriangle) {
    // Eight columns of a row: eight rows one after the other, two such blocks side by side.
    const int row = i / 16 * 8 + i % 8 - (kTiles - 1) * kBlockDim, column = i / 8 % 2 * 8;
    const auto pair = [&](int first) {
      const uint32_t low = first <= row ? kOnes & 0xffffu : 0,
                     high = first < row ? kOnes & 0xffff0000u : 0;
      return low | high;
    };
    shared_at<uint4>(G::kTriangle)[i] =
        make_uint4(pair(column), pair(column + 2), pair(column + 4), pair(column + 6));
  } else if (const int row = i - kOfTriangle; row < kOfNinth) {
    shared_at<uint4>(G::kNinth)[row] = make_uint4(row < kOfNinth / 2 ? 0 : kOnes, 0, 0, 0);
  }
}

/// The band's parts of a tile of queries, counted from the chunk's first: probabilities or the
/// gradients of scores with a group of keys, keys as rows. Eight keys of eight queries are 128
/// bytes. Groups of the chunk before are carried to it, in two places in turns.
enum class Part { kProbabilities, kGradients };
template <typename G>
__device__ __forceinline__ uint32_t carried_parts(const Sequence<G>& at, int chunk) {
  return kMemory + G::kCarriedParts + (chunk & 1) * (2 * kCarried * kPartBytes);
}
template <typename G>
__device__ __forceinline__ uint32_t near_part(const Sequence<G>& at, int tile, Part part,
                                              int group) {
  static_assert(kGroups == 3 && kCarried == 3);
  const auto carried = [&](int chunk, int first) {
    return carried_parts(at, chunk) +
           (int(part) * kCarried + (tile - first) * 2 + group) * kPartBytes;
  };
  if (tile >= kTiles) return carried(at.chunk + 1, kTiles);
  if (tile + group < kGroups - 1) return carried(at.chunk, 0);
  return kMemory + G::kNear + ((tile * 2 + int(part)) * kGroups + group) * kPartBytes;
}
__device__ __forceinline__ void store_part(uint32_t part, uint32_t lane, const Fragment& f) {
  const uint32_t matrix = lane / 8;
  const uint32_t to = part + (matrix % 2 * 2 + matrix / 2) * 128 + lane % 8 * 16;
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};\n" ::"r"(to),
               "r"(f.r[0]), "r"(f.r[1]), "r"(f.r[2]), "r"(f.r[3])
               : "memory");
}

/// A map's inner products of a tile of queries with a tile of keys no later than it, as near_part,
/// in place of the band's parts that the chunk's keys have read: ten tiles, those of the second
/// tile of queries where parts were carried to.
template <typename G>
__device__ __forceinline__ uint32_t inner_part(const Sequence<G>& at, int map, int of_queries,
                                               int of_keys) {
  static_assert(kTiles == 4 && 8 * G::kMaps <= kTiles * 2 * kGroups &&
                2 * G::kMaps <= 2 * kCarried);
  if (of_queries == 1) return carried_parts(at, at.chunk + 1) + (map * 2 + of_keys) * kPartBytes;
  const int first = of_queries == 0 ? 0 : of_queries == 2 ? 1 : 4;
  return kMemory + G::kNear + (map * 8 + first + of_keys) * kPartBytes;
}

}  // namespace fmmformer::cuda::narrow::both_sides
