// SPDX-License-Identifier: Apache-2.0
// Who does what, for heads of up to 128 channels in bf16: warpgroups with roles walk chunks of 64
// tokens.
//
//   two keepers  hold the state of all maps in fp32, each that of 64 channels of v: nearly all that
//                their registers have room for. They copy the rows of coming chunks to shared
//                memory, make the chunk's feature rows, put the state before the chunk down in
//                bf16, and add the chunk to it
//   the rows     the chunk's 64 rows, sixteen a warp, from the scores to the written results
//
// Keepers work ahead on the next chunk where the rows have left them room; barriers in shared
// memory say what is there and what is free. In sums of states there are no rows, and two more
// warpgroups, feeders, do all that is not adding.
#pragma once

#include "attention/fmm/cuda/chunks/groups.cuh"
#include "attention/fmm/cuda/registers.cuh"
#include "attention/fmm/cuda/warpgroups/launcher.cuh"
#include "attention/fmm/cuda/warpgroups/wgmma.cuh"

namespace fmmformer::cuda::warpgroups {

using chunks::kPiece, chunks::kTiles, chunks::shared_at;

constexpr int kGroupWarps = 4, kGroupThreads = kGroupWarps * kWarpSize;
constexpr int kKeepers = 2, kKeeperWarps = kKeepers * kGroupWarps,
              kKeeperThreads = kKeepers * kGroupThreads;
constexpr int kPanel = kChunk * kPanelRow;  // bytes: the chunk's rows of 64 channels
constexpr int kHaloRows = chunks::kHalo * kBlockDim, kHaloBytes = kHaloRows * kPanelRow;

/// What is known at compile time: room for D = Dv = 128, and the first kMaps of elu, elu_flip.
/// kFull: whether heads have all of these channels, see fewer_channels.cuh.
template <int kMaps_, bool kDrops_, bool kFull_>
struct Shape {
  static constexpr bool kFull = kFull_, kDrops = kDrops_;
  static constexpr int kDim = 128, kMaps = kMaps_, kFields = kMaps + 1;
  static constexpr int kBlocks = kDim / kBlockDim, kPanels = kDim / 64;
  static constexpr int kTile = kPanels * kPanel;        // a tensor's rows of a chunk
  static constexpr int kStatePanel = kDim * kPanelRow;  // 64 channels of a state's rows
  static constexpr int kStateOfMap = kPanels * kStatePanel;
};

/// Barriers, each of which completes once a chunk.
enum Event {
  kTilesFull,     // rows are in shared memory,
  kTilesEmpty,    // and no longer needed:
  kHaloEmpty,     // those of the chunk before, as the band sees them;
  kSecondEmpty,   // own rows of the second tensor
  kOwnFull,       // what keepers made of own rows: features, or exp(-|x|); not for dv
  kFeaturesFull,  // feature rows and the sums of those before the chunk
  kFeaturesEmpty,
  kStateFull,
  kStateEmpty,
  kOddFeaturesFull,  // sums: of odd steps; those above then are of even ones
  kOddFeaturesEmpty,
  kEvents
};

/// Where things lie in a sweep's shared memory, in bytes.
template <typename G, Sweep kSweep>
struct Memory {
  static constexpr bool kSums = kSweep == Sweep::kSumOfKeys || kSweep == Sweep::kSumOfQueries;
  static constexpr bool kKeys = kSweep == Sweep::kKeys;
  static constexpr bool kBackwards = kKeys || kSweep == Sweep::kValues;
  static constexpr bool kOfQueries = kBackwards || kSweep == Sweep::kSumOfQueries;
  static constexpr bool kHandsOn = kSweep == Sweep::kValues;  // may walk in pieces
  static constexpr int kThreads = kKeeperThreads + (kSums ? kKeeperThreads : kGroupThreads);
  static constexpr int kSlots = kSums ? 4 : 2;  // chunks under way; a sum's step is short

  static constexpr int kBand = 0;  // [2 tensors][kSlots] tiles
  static constexpr int kOwn = kBand + 2 * kSlots * G::kTile;
  // Own rows: q or, backwards, k, twice; grad_out or, for dk, v, once.
  static constexpr bool kQueries = kSweep == Sweep::kQueries, kHasSecond = kKeys || kQueries;
  static constexpr int kOwnTiles = kSums ? 0 : kHasSecond ? 3 : 2;
  // What is made of them: features of all maps, or exp(-|x|), or nothing: no room.
  static constexpr bool kOwnFeatures = !kSums && !kHasSecond;
  static constexpr bool kRowsMakeOwn = kSweep == Sweep::kValues;  // where keepers have more to do
  static constexpr int kMade = kOwn + kOwnTiles * G::kTile;
  static constexpr int kMadeTiles = kOwnFeatures ? G::kMaps : kQueries ? 1 : 0;
  static constexpr int kFeatures =
      kMade + kMadeTiles * G::kTile;  // [1, or for sums 2][kMaps] tiles
  static constexpr int kState = kFeatures + (kSums ? 2 : 1) * G::kMaps * G::kTile;
  static constexpr int kNumbers =  // see chunks: [count][kSlots][kChunk]
      kState + (kSums ? 0 : G::kMaps * G::kStateOfMap);
  static constexpr int kNumberCount = kOfQueries && kSweep != Sweep::kValues ? 2 * G::kFields
                                      : kOfQueries || kQueries               ? 1 + G::kMaps
                                                                             : 0;
  static constexpr int kKeySums = kNumbers + kNumberCount * kSlots * kChunk * int(sizeof(float));
  // float [maps][kDim]; forward, see chunks::KeySumOperands: as many bytes.
  // For dk of two steps: keepers make the next features while the rows still need the sums.
  static constexpr bool kHasKeySums = kSweep != Sweep::kValues;
  static constexpr int kKeySumSlots = kKeys         ? 2
                                      : kHasKeySums ? 1
                                                    : 0,
                       kKeySumBytes = G::kMaps * G::kDim * int(sizeof(float));
  static constexpr int kBarriers = kKeySums + kKeySumSlots * kKeySumBytes;
  static constexpr int kPlace = kBarriers + kEvents * 8;  // see Place::Numbers
  static constexpr int kBytes = kPlace + 8 * 4 + kSlots * 8 + (G::kFields + 1) / 2 * 8;

  static __device__ __forceinline__ int band(int which, int slot) {
    return kBand + (which * kSlots + slot) * G::kTile;
  }
  static __device__ __forceinline__ int own(int which, int slot) {
    return kOwn + (which == 1 ? 2 : slot) * G::kTile;
  }
  /// The features of a step.
  static __device__ __forceinline__ int features(int step) {
    return kFeatures + (kSums ? step % 2 * G::kMaps * G::kTile : 0);
  }
  static __device__ __forceinline__ float* key_sums(int step) {
    return shared_at<float>(kKeySums + step % kKeySumSlots * kKeySumBytes);
  }
  static __device__ __forceinline__ float* numbers(int which, int slot) {
    return shared_at<float>(kNumbers) + (which * kSlots + slot) * kChunk;
  }
};

/// A walk, or a piece of one: that of a segment of a (batch entry, head).
struct Part {
  int pair, segment;
  int piece = 0, pieces = 1;  // in the walk's order
};

/// The chunks that a thread block walks. Its numbers, the same for all threads, lie in shared
/// memory: registers are scarce.
template <typename G, Sweep kSweep>
struct Place {
  using M = Memory<G, kSweep>;
  static constexpr int kDirection = M::kBackwards ? -1 : 1;
  struct Numbers {
    int pair, b, h, segment, piece, pieces;
    int first, count;           // chunks, in the walk's order
    uint64_t live[M::kSlots];   // bits of the live tokens of the chunks that are in shared memory
    float weights[G::kFields];  // of the maps and, last, of the near field
  };

  static __device__ __forceinline__ Numbers& numbers() { return *shared_at<Numbers>(M::kPlace); }
  /// By one thread, before all.
  static __device__ void prepare(const SweepArgs& args, const Part& part) {
    Numbers& n = numbers();
    n.pair = part.pair, n.segment = part.segment, n.piece = part.piece, n.pieces = part.pieces;
    n.b = n.pair / args.heads, n.h = n.pair % args.heads;
    const int begin = segment_begin(args, n.segment) / kChunk;
    const int end = (segment_begin(args, n.segment + 1) + kChunk - 1) / kChunk;
    const int skipped = (end - begin) * part.piece / part.pieces;
    n.first = kDirection > 0 ? begin + skipped : end - 1 - skipped;
    n.count = (end - begin) * (part.piece + 1) / part.pieces - skipped;
    for (int l = 0; l < G::kMaps; ++l) n.weights[l] = weight_value(args.far_weight, l, n.h, 0);
    n.weights[G::kMaps] = weight_value(args.near_weight, 0, n.h, 0);
  }
  static __device__ __forceinline__ int chunk(int step) {
    return numbers().first + kDirection * step;
  }
  static __device__ __forceinline__ uint64_t& live(int slot) { return numbers().live[slot]; }
  /// Of one of `fields` numbers that every row has, [pairs, fields, length].
  static __device__ __forceinline__ int64_t row_index(const SweepArgs& args, int fields,
                                                      int field) {
    return (int64_t(numbers().pair) * fields + field) * args.length;
  }
  static __device__ __forceinline__ Elem* rows_of(const View& view) {
    const Numbers& n = numbers();
    return static_cast<Elem*>(view.data) + n.b * view.batch_stride + n.h * view.head_stride;
  }
  /// Bits of the chunk's live tokens. All lanes of a warp must call.
  static __device__ __forceinline__ uint64_t live_tokens(const SweepArgs& args, int of_chunk) {
    const int inside = min(max(args.length - of_chunk * kChunk, 0), kChunk);
    uint64_t bits = of_chunk < 0 || inside == 0 ? 0 : ~uint64_t(0) >> (kChunk - inside);
    if (args.token_mask) {
      const bool* mask = args.token_mask + int64_t(numbers().b) * args.length;
      const int at = of_chunk * kChunk + lane_id(), last = args.length - 1;
      const uint64_t low = __ballot_sync(~0u, mask[min(max(at, 0), last)]);
      const uint64_t high = __ballot_sync(~0u, mask[min(max(at + kWarpSize, 0), last)]);
      bits &= high << kWarpSize | low;
    }
    return bits;
  }
};

/// What one role tells another.
template <typename M>
struct Events {
  uint32_t first;

  __device__ Events() {
    first = static_cast<uint32_t>(__cvta_generic_to_shared(shared_at<uint64_t>(M::kBarriers)));
  }
  /// By one thread, before all. Keepers, or in sums feeders, say what is full; the rows, or in sums
  /// keepers, what is empty.
  __device__ void prepare() const {
    for (int i = 0; i < kEvents; ++i) {
      const bool full = i == kTilesFull || i == kOwnFull || i == kFeaturesFull || i == kStateFull ||
                        i == kOddFeaturesFull;
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(first + 8 * i),
                   "r"(full || M::kSums ? kKeeperWarps : kGroupWarps));
    }
  }
  /// This warp says it.
  __device__ __forceinline__ void say(Event event) const {
    __syncwarp();
    if (lane_id() == 0)
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(first + 8 * event)
                   : "memory");
    __syncwarp();
  }
  /// Waits until all have said it in step `step`.
  __device__ __forceinline__ void await(Event event, int step) const {
    uint32_t done;
    do {
      asm volatile(
          "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
          "selp.u32 %0, 1, 0, p;\n}\n"
          : "=r"(done)
          : "r"(first + 8 * event), "r"(step & 1)
          : "memory");
    } while (!done);
  }
};

/// What one thread block tells another, by a number in memory that grows.
__device__ __forceinline__ void say_progress(int* progress, int done) {
  asm volatile("st.release.gpu.global.b32 [%0], %1;\n" ::"l"(progress), "r"(done) : "memory");
}
__device__ __forceinline__ void await_progress(const int* progress, int wanted) {
  int done;
  do {
    asm volatile("ld.acquire.gpu.global.b32 %0, [%1];\n" : "=r"(done) : "l"(progress) : "memory");
  } while (done < wanted);
}

__device__ __forceinline__ uint32_t address_of(int place) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared_at<unsigned char>(0))) + place;
}
/// Operands of step s of a product, sixteen channels or rows, from places in shared memory.
__device__ __forceinline__ uint32_t units_of(int place) {
  return (address_of(0) >> 4) + (place >> 4);
}
/// A chunk's rows, or from some of them on: the sum is over channels, or over them.
__device__ __forceinline__ Operand rows_operand(int tile, int s) {
  return operand(units_of(tile) + (s / 4 * kPanel + s % 4 * 32) / 16);
}
__device__ __forceinline__ Operand columns_operand(int tile, int s) {
  return operand(units_of(tile) + s * 2 * kPanelEight / 16, kPanel / 16);
}
/// A state's rows are channels of v; the sum is over feature channels, or over them.
template <typename G>
__device__ __forceinline__ Operand state_rows_operand(int state, int s) {
  return operand(units_of(state) + (s / 4 * G::kStatePanel + s % 4 * 32) / 16);
}
template <typename G>
__device__ __forceinline__ Operand state_columns_operand(int state, int s) {
  return operand(units_of(state) + s * 2 * kPanelEight / 16, G::kStatePanel / 16);
}

/// This lane's place in sixteen rows of a panel as ldmatrix and stmatrix want it; block b of the
/// panel's channels is at `of(b)`.
struct LanePlace {
  int row, piece;

  __device__ explicit LanePlace(int first_row) {
    const int lane = lane_id();
    row = (first_row + lane % 16) * kPanelRow, piece = (lane / 16 ^ (lane & 7)) << 4;
  }
  __device__ __forceinline__ int of(int b) const { return row + (piece ^ b << 5); }
};
__device__ __forceinline__ void store_fragment(int place, const Fragment& f) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};\n" ::"r"(address_of(place)),
      "r"(f.r[0]), "r"(f.r[1]), "r"(f.r[2]), "r"(f.r[3])
      : "memory");
}

}  // namespace fmmformer::cuda::warpgroups
