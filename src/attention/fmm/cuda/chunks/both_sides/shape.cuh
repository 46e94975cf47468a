// SPDX-License-Identifier: Apache-2.0
// Who does what: a thread block walks the chunks of its segment from the last to the first, and all
// gradients of a chunk are made from one copy of its rows and features, by warpgroups:
//
//   queries   one for each map: its part of dq and the rows' dots, from the state before the chunk,
//             which forward kept
//   keys      dk, from the dots and the state after the chunk
//   values    the band's probabilities and their gradients, for all; dv; the state after the chunk
//
// The last map's queries also have the band's part of dq; of what both made, either writes a half
// of the rows, to which the other's part comes rounded. A warp owns sixteen rows of the chunk. All
// meet once a chunk, and some wait for one another in between.
#pragma once

#include <cooperative_groups.h>

#include "attention/fmm/cuda/chunks/both_sides/launcher.cuh"
#include "attention/fmm/cuda/chunks/warpgroup/products.cuh"
#include "attention/fmm/cuda/registers.cuh"
#include "attention/fmm/cuda/row_copies.cuh"

namespace fmmformer::cuda::chunks::both_sides {

constexpr int kGroupThreads = 128;
/// Registers of a thread: the values' warpgroup holds the state after the chunk. None must spill,
/// since shared memory leaves hardly a first-level cache.
template <typename G>
struct Groups {
  static constexpr int kKeys = G::kMaps, kValues = kKeys + 1;  // first the queries'
  static constexpr int kThreads = (kValues + 1) * kGroupThreads;
  static constexpr int kOfAll = G::kMaps == 1 ? 168 : 128;  // before and after the walk
  static constexpr int kOfQueries = G::kMaps == 1 ? 152 : 120, kOfKeys = G::kMaps == 1 ? 152 : 128,
                       kOfValues = G::kMaps == 1 ? 200 : 144;
};

enum Rows { kQ, kK, kV, kGradOut, kRowTensors };
enum Results { kDq = kRowTensors, kDk, kDv, kAllTensors };

/// How the copy engine finds the tensors' rows: a chunk's of those that are loaded; of results,
/// what a warp writes at once.
struct RowMaps {
  RowMap of[kAllTensors];
};
/// Rows of dq that a warp writes: its tile's or, of two maps, either's warp a half of them.
constexpr int rows_of_dq(int maps) { return kBlockDim / maps; }

/// Named barriers.
enum Barrier {
  kFeaturesMade = 1,   // queries and keys wait for each other
  kFeaturesForValues,  // values for all
  kStateMade,          // keys for values
  kNearForKeys,        // keys for values
  kNearForQueries,     // the last map's for values
  kDotsMade,           // keys for queries
  kPartOfQueries,      // either map's for the other's
  kAmongValues,
  kAmongQueries,  // of a map: kMostMaps numbers
};

/// What the copy engine brings: every map's state before the chunk, and the next rows of the walk.
enum Comes { kStateComes, kRowsCome = kStateComes + kMostMaps, kAllEvents };

/// Where things lie in shared memory, in bytes.
template <typename G>
struct Memory {
  static constexpr int kMostChunks = kLongest / kChunk;
  // Of queries the walk needs the chunk's and the one's after it, of keys the chunk's and the one's
  // before it; another is under way.
  static constexpr int kSlots = 3;
  static constexpr int kRows = 0;  // [tensors][kSlots][kTiles] tiles
  static constexpr int kKeyFeatures = kRows + kRowTensors * kSlots * G::kArea;  // [maps] areas
  static constexpr int kQueryFeatures = kKeyFeatures + G::kMaps * G::kArea;     // times factors
  static constexpr int kPlainFeatures = kQueryFeatures + G::kMaps * G::kArea;   // of queries
  static constexpr int kBefore = kPlainFeatures + G::kMaps * G::kArea;  // the state, [maps] areas
  static constexpr int kAfter = kBefore + G::kMaps * G::kArea;
  static constexpr int kStage = kAfter + G::kMaps * G::kArea;  // [dk, dv]: on their way to memory
  static constexpr int kNear = kStage + 2 * G::kArea;          // see Walk::near_place
  static constexpr int kNearTiles = kTiles + kHalo;
  static constexpr int kNearBytes = kNearTiles * 2 * kMostGroups * kWarpSize * 16;
  static constexpr int kTriangle =
      kNear + (kNearBytes + G::kTile - 1) / G::kTile * G::kTile;  // ones for what rows see
  // Before the walk, from the key features on, what segments.cuh has.
  static constexpr int kSegmentSums = kKeyFeatures, kSumsRoom = kTriangle - kSegmentSums;
  static constexpr int kKeySums = kTriangle + G::kArea;  // float [maps][kDim], before the chunk,
  static constexpr int kDotSums = kKeySums + G::kMaps * kKeySumBytes;  // and with dots, after it
  static constexpr int kDots = kDotSums + G::kMaps * kKeySumBytes;     // float [maps][kChunk]
  // float [kSlots][log_sum_exp, normalisers][kChunk]
  static constexpr int kNumbers = kDots + G::kMaps * kChunk * int(sizeof(float));
  static constexpr int kWeightSums =
      kNumbers + kSlots * G::kFields * kChunk * int(sizeof(float));  // float [kTiles][kFields]
  // uint64_t [kMostChunks + 2]: live tokens, from the chunk before the first one on
  static constexpr int kLive =
      kWeightSums + (kTiles * G::kFields * int(sizeof(float)) + 15) / 16 * 16;
  static constexpr int kBand = kLive + (kMostChunks + 2) * int(sizeof(uint64_t));  // see NearBand
  static constexpr int kQuadSums =
      kBand + kWarpSize * int(sizeof(uint32_t));  // float [threads / 4]: see quad_total
  static constexpr int kEvents =
      kQuadSums + Groups<G>::kThreads / 4 * int(sizeof(float));                // see Comes
  static constexpr int kPlace = kEvents + kAllEvents * int(sizeof(uint64_t));  // int2: see Walk
  static constexpr int kReadUntil = kPlace + int(sizeof(int2));  // int: see Walk::await_readers
  static constexpr int kBegin = kReadUntil + int(sizeof(int));   // int: Walk::begin
  static constexpr int kEnd = kBegin + int(sizeof(int));         // int: Walk::end
  static constexpr int kWeights = kEnd + int(sizeof(int));       // float [kFields], the band's last
  // float [segments - 1][maps][kDim]: what segments' queries take from earlier ones' dk
  static constexpr int kTaken = (kWeights + G::kFields * int(sizeof(float)) + 15) / 16 * 16;
  // uint32_t [kGroupThreads]: see dropout_word, of the band that is made next
  static constexpr int kDropout = kTaken + (kMostSegments - 1) * G::kMaps * kKeySumBytes;
  static constexpr int kBytes = kDropout + (G::kDrops ? kDropoutBytes : 0);
  static_assert(kBytes <= kSharedBytes);
  static_assert(kEvents % 8 == 0 && kPlace % 8 == 0 && kLive % 8 == 0 && kDots % 8 == 0);
};

/// Operands of the band's gradients: weight * probabilities, and gradients of scores.
enum NearKind { kProbabilities, kScoreGradients };

/// A chunk's entry in what forward keeps.
template <typename G>
__device__ __forceinline__ unsigned char* entry_of(const SweepArgs& args, int pair, int chunk) {
  const int64_t chunks = (args.length + kChunk - 1) / kChunk;
  return args.chunk_states + (pair * chunks + chunk) * entry_bytes(G::kMaps, G::kDrops);
}
/// There, which elements of the band dropout leaves of a warp's rows, of number `index` of the
/// chunk's threads: element i of group k is bit 8 k + i.
template <typename G>
__device__ __forceinline__ uint32_t* dropout_word(const SweepArgs& args, int pair, int chunk,
                                                  int index) {
  static_assert(8 * kMostGroups <= 32 && kDropoutBytes == kGroupThreads * 4);
  return reinterpret_cast<uint32_t*>(entry_of<G>(args, pair, chunk) + dropout_place(G::kMaps)) +
         index;
}

/// The first chunk of a segment; of the one after the last, the number of chunks. As segment_begin,
/// but for divisions of 64 bits, which take hundreds of cycles.
__device__ __forceinline__ int first_chunk(const SweepArgs& args, int segment) {
  const unsigned chunks = (args.length + kChunk - 1) / kChunk;
  return static_cast<int>(unsigned(segment) * chunks / unsigned(args.segments));
}

/// The walk of a block, and what a warp has to do in it.
template <typename G>
struct Walk {
  using Geometry = G;
  using M = Memory<G>;
  const SweepArgs& args;
  const RowMaps& maps;
  int pair, b, h, segment;
  int begin, end;            // chunks
  int sums_begin, sums_end;  // those whose sums the block makes for earlier segments
  int tile;                  // the warp's rows
  int chunk;
  int slot;  // where the chunk's rows lie

  __device__ Walk(const SweepArgs& args, const RowMaps& maps) : args(args), maps(maps) {
    const unsigned block = blockIdx.x, segments = args.segments, heads = args.heads;
    pair = block / segments, segment = block % segments;
    b = unsigned(pair) / heads, h = unsigned(pair) % heads;
    begin = first_chunk(args, segment), end = first_chunk(args, segment + 1);
    sums_begin = segment > 0 ? begin : end, sums_end = end;
    if (args.segments == 2) {  // both blocks sum a half of the second segment
      const int first = segment == 0 ? end : begin, last = (args.length + kChunk - 1) / kChunk,
                middle = (first + last) / 2;
      sums_begin = segment == 0 ? first : middle, sums_end = segment == 0 ? middle : last;
    }
    // The same in every lane, as the compiler sees from the shuffle.
    tile = __shfl_sync(~0u, threadIdx.x / kWarpSize, 0) % kTiles;
    chunk = end, slot = end % M::kSlots;
  }
  /// From shared memory: registers are scarce, and few threads ask.
  static __device__ __forceinline__ int2 batch_and_head() { return *shared_at<int2>(M::kPlace); }
  /// Of the blocks whose sums this one begins with, the first; the last are they all.
  __device__ __forceinline__ int first_part() const {
    return args.segments == 2 ? 2 * segment : segment + 1;
  }
  /// Keeps the compiler from computing addresses before the walk: those of a step are cheaper than
  /// the registers that would hold them.
  __device__ __forceinline__ void forget() { asm volatile("" : "+r"(pair), "+r"(tile)); }
  /// Whether other chunks follow.
  __device__ __forceinline__ bool goes_on() const { return chunk > *shared_at<int>(M::kBegin); }
  __device__ __forceinline__ void step_back() {
    --chunk;
    slot = slot > 0 ? slot - 1 : M::kSlots - 1;
  }
  /// A chunk's rows in shared memory: the walk's, or `further` from it.
  __device__ __forceinline__ int area(int tensor, int further = 0) const {
    return area_of(tensor, slot_of(further));
  }
  __device__ __forceinline__ int slot_of(int further) const {
    int at = slot + further;
    if (further < 0) at = at < 0 ? at + M::kSlots : at;
    if (further > 0) at = at >= M::kSlots ? at - M::kSlots : at;
    return at;
  }
  static __device__ __forceinline__ int area_of(int tensor, int slot) {
    return M::kRows + (tensor * M::kSlots + slot) * G::kArea;
  }
  /// Where a block's part of the state is that others begin with, of a map float4
  /// [2 * kTiles][kGroupThreads]: number `i` of them. In places that nobody writes before
  /// await_readers, some of which depend on the chunk where the block's segment ends.
  static __device__ __forceinline__ int sums_place(int map, int i, int segment_end) {
    const int unused = (segment_end + 1) % M::kSlots;  // of rows: the place of chunk end - 2
    const int area = map == 0     ? M::kStage + i / kTiles * G::kArea
                     : i < kTiles ? area_of(kQ, unused)
                                  : area_of(kGradOut, unused);
    return area + i % kTiles * kGroupThreads * int(sizeof(float4));
  }
  /// A tile of them, -4 to 7 counted from the chunk's first.
  __device__ __forceinline__ int row_tile(int tensor, int index) const {
    const int further = index < 0 ? -1 : index >= kTiles ? 1 : 0;
    return area(tensor, further) + (index & (kTiles - 1)) * G::kTile;
  }
  /// The band's operands of a query's tile, 0 to 5 counted from the chunk's first, for each key's
  /// tile that it sees, `group` before it: turned, as a lane's registers.
  __device__ __forceinline__ uint4* near_place(int index, NearKind kind, int group) const {
    // Of the chunk's first tile, 4 * chunk modulo kNearTiles.
    static_assert(kTiles == 4 && M::kNearTiles == 2 * M::kSlots);
    int at = (slot > 0 ? 2 * (M::kSlots - slot) : 0) + index;
    at = at >= M::kNearTiles ? at - M::kNearTiles : at;
    at = (at * 2 + kind) * kMostGroups + group;
    return shared_at<uint4>(M::kNear) + at * kWarpSize + lane_id();
  }
  __device__ __forceinline__ uint64_t live(int of_chunk) const {
    return shared_at<uint64_t>(M::kLive)[of_chunk + 1];
  }
  __device__ __forceinline__ uint32_t live_bits(int index) const {
    const int further = index < 0 ? -1 : index >= kTiles ? 1 : 0;
    return static_cast<uint32_t>(live(chunk + further) >> (index & (kTiles - 1)) * kBlockDim) &
           0xffffu;
  }
  static __device__ __forceinline__ CopyEvent event(int number) {
    return {shared_at<uint64_t>(M::kEvents) + number};
  }
  /// By one thread; a barrier must follow. What comes in the step of a chunk, or for it, comes at
  /// the turn of that chunk's last bit.
  __device__ __forceinline__ void begin_event(int number) const {
    event(number).init();
    if (end - 1 & 1) event(number).expect(0);  // turn 0 is over
  }
  __device__ __forceinline__ float* numbers(int field, int further = 0) const {
    return shared_at<float>(M::kNumbers) + (slot_of(further) * G::kFields + field) * kChunk;
  }
  /// In the first step: waits until the cluster's other blocks have read this one's part of the
  /// state. Every thread must, once.
  __device__ __forceinline__ void await_readers() const {
    if (chunk == *shared_at<int>(M::kReadUntil)) cooperative_groups::this_cluster().barrier_wait();
  }
};

/// threadIdx.x, which is not to be kept during the walk, nor what follows from it: it would be
/// spilled.
__device__ __forceinline__ unsigned thread_anew() {
  unsigned thread;
  asm volatile("mov.u32 %0, %%tid.x;\n" : "=r"(thread));
  return thread;
}
/// <dO, field> of all rows that four lanes share, a blend weight's gradient; in shared memory for
/// want of a register.
template <typename G>
__device__ __forceinline__ float& quad_total() {
  return shared_at<float>(Memory<G>::kQuadSums)[thread_anew() / 4];
}
template <typename G>
__device__ __forceinline__ void add_to_total(float of_rows) {
  if (lane_id() % 4 == 0) quad_total<G>() += of_rows;
}

/// Sixteen channels further, as an operand counts.
using warpgroup::finish_products;
using warpgroup::kFurther;
using warpgroup::operand_at;

/// c = a t^T, or c +=: 64 rows of either, at places in shared memory; over channels.
template <bool kAdd>
__device__ __forceinline__ void begin_columns(Block (&c)[kTiles], int a, int t) {
  begin_warpgroup_products();
  const uint64_t left = operand_at(a), right = operand_at(t);
#pragma unroll
  for (int s = 0; s < kTiles; ++s) {
    if (s == 0) begin_step<kAdd, false>(c, left, right);
    if (s != 0) begin_step<true, false>(c, left + s * kFurther, right + s * kFurther);
  }
}
/// c += a t, over the rows of t at a place in shared memory; a in registers,
template <typename G>
__device__ __forceinline__ void begin_rows(Block (&c)[kTiles], const Fragment (&a)[kTiles], int t) {
  begin_warpgroup_products();
#pragma unroll
  for (int i = 0; i < kTiles; ++i) begin_step<true, true>(c, a[i], operand_at(t + i * G::kTile));
}
/// or at a place,
template <typename G>
__device__ __forceinline__ void begin_rows(Block (&c)[kTiles], int a, int t) {
  begin_warpgroup_products();
  const uint64_t left = operand_at(a);
#pragma unroll
  for (int i = 0; i < kTiles; ++i)
    begin_step<true, true, /*kLeftTurned=*/false>(c, left + i * kFurther,
                                                  operand_at(t + i * G::kTile));
}
/// or turned as well: c += a^T t.
template <typename G>
__device__ __forceinline__ void begin_turned_rows(Block (&c)[kTiles], int a, int t) {
  begin_warpgroup_products();
#pragma unroll
  for (int i = 0; i < kTiles; ++i)
    begin_step<true, true>(c, operand_at(a + i * G::kTile), operand_at(t + i * G::kTile));
}

/// value(tile) as operands, cut as the rows of tile `own` see the chunk: what comes before them or,
/// kKeys, after.
template <bool kKeys, typename Value>
__device__ __forceinline__ void seen_scores(Fragment (&scores)[kTiles], int own,
                                            const Value& value) {
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    scores[tile] = {{0, 0, 0, 0}};
    const int beyond = kKeys ? own - tile : tile - own;
    if (beyond > 0) continue;
    scores[tile] = value(tile);
    if (beyond == 0) cut_at_diagonal<kKeys>(scores[tile]);
  }
}

/// The gradient with respect to features becomes that of what they were made of: times their slope
/// (see paper_maps.cuh) and a factor for rows g and g + 8.
__device__ __forceinline__ void make_input_gradient(Block& gradient, const Fragment& f,
                                                    const float (&factor)[2]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    float low, high;
    Bf16::unpack(as_bits(__hmin2(as_pair(f.r[j]), both(1.f))), low, high);
    float* at = gradient[j / 2] + j % 2 * 2;
    at[0] *= factor[j % 2] * low, at[1] *= factor[j % 2] * high;
  }
}

}  // namespace fmmformer::cuda::chunks::both_sides
