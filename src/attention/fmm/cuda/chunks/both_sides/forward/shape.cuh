// SPDX-License-Identifier: Apache-2.0
// Who does what: a thread block walks the chunks of its segment from the first to the last, by
// warpgroups:
//
//   keeper   has the state, which is all that a chunk needs of those before it: it works ahead
//   rows     three, each with every third chunk, from raw rows to written ones: they wait for the
//            keeper, and it for the keys' features that they make
//
// A warp owns sixteen rows of the chunk and sixteen feature channels of the state.
#pragma once

#include "attention/fmm/cuda/chunks/both_sides/rows.cuh"

namespace fmmformer::cuda::chunks::both_sides::forward {

constexpr int kRowGroups = 3, kGroups = 1 + kRowGroups, kThreads = kGroups * kGroupThreads;
constexpr int kOfKeeper = 104, kOfRows = 136;  // registers of a thread

enum Tensors { kQueries, kKeys, kValues, kOut, kTensors };
/// How the copy engine finds the tensors' rows: a chunk's of those that are loaded, of out a
/// tile's.
struct RowMaps {
  RowMap of[kTensors];
};
/// Named barriers: of a warpgroup.
constexpr int kInGroup = 1;

/// What the keeper and one of the rows' warpgroups tell each other, again and again.
enum Happens {
  kFeaturesMade,  // and rows have come
  kAdded,         // the keeper needs them no longer
  kStateMade,     // the state before the chunk
  kFarDone,       // the rows need it no longer
  kHappenings
};

/// Where things lie in shared memory, in bytes.
template <typename G>
struct Memory {
  static constexpr int kMostChunks = kLongest / kChunk;
  // Of the rows' warpgroups, in turn this chunk's and the next one's. Keys and values of the chunk
  // before are needed too: those of the chunk after the next but one go to the place of the one
  // before that.
  static constexpr int kSeenPlaces = 2 * kRowGroups, kStatePlaces = 2;
  static constexpr int kEvenQueries = 0;                                // [kRowGroups] areas
  static constexpr int kSeen = kEvenQueries + kRowGroups * G::kArea;    // [..][k, v] areas
  static constexpr int kFeatures = kSeen + kSeenPlaces * 2 * G::kArea;  // [..][maps] areas
  static constexpr int kStates = kFeatures + kRowGroups * G::kMaps * G::kArea;
  static constexpr int kOddQueries = kStates + kStatePlaces * G::kMaps * G::kArea;
  // see KeySumOperands
  static constexpr int kKeySums = kOddQueries + kRowGroups * G::kArea;
  // Before the walk, where its first copies do not go: every warpgroup's rows and features; then,
  // float4 [maps][2 * kTiles][kGroupThreads], the block's part of the state, in places that the
  // walk does not use before its second round.
  static constexpr int kPart = kSeen + (1 + kRowGroups) * 2 * G::kArea,
                       kPartBytes = (2 + G::kMaps) * G::kArea;
  static_assert(kPart + kGroups * kPartBytes <= kKeySums);
  static_assert(G::kMaps * G::kDim * G::kDim * int(sizeof(float)) <= kFeatures - kPart);
  static constexpr int kPartKeySums =
      kKeySums + kStatePlaces * G::kMaps * kKeySumBytes;  // float [maps][kDim]: of the block's part
  static constexpr int kLive = kPartKeySums + G::kMaps * kKeySumBytes;
  static constexpr int kEvents = kLive + (kMostChunks + 2) * int(sizeof(uint64_t));
  static constexpr int kCopies =
      kEvents + kHappenings * kRowGroups * int(sizeof(uint64_t));  // of rows, [kRowGroups]
  static constexpr int kPlace = kCopies + kRowGroups * int(sizeof(uint64_t));  // int2: see Walk
  static constexpr int kDone = kPlace + int(sizeof(int2));  // int [kRowGroups]: see Walk::say_done
  static constexpr int kWeights = kDone + kRowGroups * int(sizeof(int));  // float [kFields]
  static constexpr int kBytes = kWeights + G::kFields * int(sizeof(float));
  static_assert(kBytes <= kSharedBytes);
  static_assert(kLive % 8 == 0 && kEvents % 8 == 0 && kPlace % 8 == 0);
};

/// Something that four warps say, in shared memory; again and again, by turns 0 and 1. Of something
/// that was never said, turn 1 counts as over.
struct Event {
  uint32_t at;

  template <typename G>
  static __device__ __forceinline__ Event of(Happens what, int group) {
    return {shared_address(shared_at<uint64_t>(Memory<G>::kEvents) + what * kRowGroups + group)};
  }
  __device__ __forceinline__ void init() const {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(at), "n"(kTiles) : "memory");
  }
  __device__ __forceinline__ void say() const {
    __syncwarp();
    if (lane_id() == 0)
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(at) : "memory");
  }
  __device__ __forceinline__ void await(int turn) const {
    uint32_t done;
    do {
      asm volatile(
          "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
          "selp.u32 %0, 1, 0, p;\n}\n"
          : "=r"(done)
          : "r"(at), "r"(turn)
          : "memory");
    } while (!done);
  }
};

/// The walk of a block.
template <typename G>
struct Walk {
  using Geometry = G;
  using M = Memory<G>;
  const SweepArgs& args;
  const RowMaps& maps;
  int pair, b, h, segment;
  int begin, end;            // chunks
  int sums_begin, sums_end;  // those whose sums the block makes for later segments
  int tile;                  // the warp's rows
  int chunk;

  __device__ Walk(const SweepArgs& args, const RowMaps& maps) : args(args), maps(maps) {
    const unsigned block = blockIdx.x, segments = args.segments, heads = args.heads;
    pair = block / segments, segment = block % segments;
    b = unsigned(pair) / heads, h = unsigned(pair) % heads;
    begin = first_chunk(args, segment), end = first_chunk(args, segment + 1);
    sums_begin = begin, sums_end = segment + 1 < args.segments ? end : begin;
    if (args.segments == 2) {  // both blocks sum a half of the first segment
      const int all = first_chunk(args, 1), middle = (all + 1) / 2;
      sums_begin = segment == 0 ? 0 : middle, sums_end = segment == 0 ? middle : all;
    }
    // The same in every lane, as the compiler sees from the shuffle.
    tile = __shfl_sync(~0u, threadIdx.x / kWarpSize, 0) % kTiles;
    chunk = begin;
  }
  /// Of the blocks whose sums this one begins with, the one after the last; the first are they all.
  __device__ __forceinline__ int parts_end() const {
    return args.segments == 2 ? 2 * segment : segment;
  }
  __device__ __forceinline__ void forget() { asm volatile("" : "+r"(pair), "+r"(tile)); }
  static __device__ __forceinline__ int2 batch_and_head() { return *shared_at<int2>(M::kPlace); }
  /// At which the rows of a warpgroup's next chunk come.
  static __device__ __forceinline__ CopyEvent copy_event(int group) {
    return {shared_at<uint64_t>(M::kCopies) + group};
  }
  /// Where a chunk's rows lie: of queries; of keys, with those of values an area further; and the
  /// features of its keys, of the first map.
  __device__ __forceinline__ int queries_of(int of_chunk) const {
    const int at = (of_chunk - begin) % (2 * kRowGroups);
    return at < kRowGroups ? M::kEvenQueries + at * G::kArea
                           : M::kOddQueries + (at - kRowGroups) * G::kArea;
  }
  __device__ __forceinline__ int seen_of(int of_chunk) const {
    return M::kSeen + (of_chunk - begin + 1) % M::kSeenPlaces * (2 * G::kArea);
  }
  static __device__ __forceinline__ int features_of(int group) {
    return M::kFeatures + group * G::kMaps * G::kArea;
  }
  /// The state before a chunk, of the first map, and its key sums.
  __device__ __forceinline__ int state_of(int of_chunk) const {
    return M::kStates + ((of_chunk - begin) & 1) * G::kMaps * G::kArea;
  }
  __device__ __forceinline__ int key_sums_of(int of_chunk) const {
    return M::kKeySums + ((of_chunk - begin) & 1) * G::kMaps * kKeySumBytes;
  }
  __device__ __forceinline__ uint64_t live(int of_chunk) const {
    return shared_at<uint64_t>(M::kLive)[of_chunk + 1];
  }
  /// Bits of a tile's live tokens, -4 to 3 counted from the chunk's first.
  __device__ __forceinline__ uint32_t live_bits(int index) const {
    return static_cast<uint32_t>(live(index < 0 ? chunk - 1 : chunk) >>
                                 (index & (kTiles - 1)) * kBlockDim) &
           0xffffu;
  }
  /// Every warp of a rows' warpgroup says that it is done with a chunk and the rows before it; and
  /// waits until those of chunk `of_chunk` are. A number that grows, since others may be further.
  __device__ __forceinline__ void say_done(int group) const {
    __syncwarp();
    const uint32_t at = shared_address(shared_at<int>(M::kDone) + group);
    if (lane_id() == 0)
      asm volatile("red.release.cta.shared::cta.add.u32 [%0], 1;\n" ::"r"(at) : "memory");
  }
  __device__ __forceinline__ void await_done(int of_chunk) const {
    if (of_chunk < begin) return;
    const unsigned number = of_chunk - begin;
    const uint32_t at = shared_address(shared_at<int>(M::kDone) + number % kRowGroups);
    unsigned said;
    do {
      asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];\n" : "=r"(said) : "r"(at) : "memory");
    } while (said < (number / kRowGroups + 1) * kTiles);
  }
};

__device__ __forceinline__ void meet_group(int group) {
  show_to_warpgroup();
  named_barrier(kInGroup + group, kGroupThreads);
}

}  // namespace fmmformer::cuda::chunks::both_sides::forward
