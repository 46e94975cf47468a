// SPDX-License-Identifier: Apache-2.0
// Who does what, for heads of up to 64 or 128 channels in bf16: a thread block walks chunks of 64
// tokens.
//
// A block has a segment of one (batch entry, head). A warp owns sixteen rows of the chunk and 64 of
// their channels of results, so that heads of 128 channels have two warps, slices, for the same
// rows; and it owns, of every map's state, the rows of sixteen feature channels, in fp32 registers.
// Once a chunk the state goes, rounded, to shared memory, where all warps find it.
//
// Blend weights are one number a head here, so that near field and all maps are one matrix of
// scores before it meets v.
#pragma once

#include "attention/fmm/cuda/barrier.cuh"
#include "attention/fmm/cuda/chunks/launcher.cuh"
#include "attention/fmm/cuda/fewer_channels.cuh"
#include "attention/fmm/cuda/fragment.cuh"
#include "attention/fmm/cuda/tile.cuh"

namespace fmmformer::cuda::chunks {

constexpr int kTiles = kChunk / kBlockDim;  // of sixteen tokens
constexpr int kHalo = 2;                    // tiles of a neighbour that a band may reach
constexpr int kSlice = 64;                  // channels of a warp's results
constexpr int kSliceBlocks = kSlice / kBlockDim;
constexpr int kPiece = 8;  // elements that are copied at once

/// What is known at compile time: room for D = Dv = kDim, and the first kMaps of elu, elu_flip,
/// tanh1. kPadded: see kRow. kFull: whether heads have all the channels that there is room for,
/// see fewer_channels.cuh. kWarpgroup: whether products are a warpgroup's (warpgroup/), else a
/// warp's.
template <int kDim_, int kMaps_, bool kDrops_, bool kPadded_, bool kFull_, bool kWarpgroup_ = false>
struct Shape {
  static constexpr int kDim = kDim_, kMaps = kMaps_, kFields = kMaps + 1;
  static constexpr bool kFull = kFull_;
  static constexpr bool kDrops = kDrops_;
  static constexpr int kBlocks = kDim / kBlockDim;  // of channels
  static constexpr int kSlices = kDim / kSlice, kWarps = kTiles * kSlices;
  static constexpr int kThreads = kWarps * kWarpSize, kPieces = kDim / kPiece;
  // In shared memory, in bytes. Eight rows' pieces of the same channels must lie in different
  // banks: rows are padded by a piece or, where memory is too small for that, their pieces
  // permuted.
  static constexpr bool kPadded = kPadded_, kWarpgroup = kWarpgroup_;
  static_assert(!kWarpgroup || (kDim == 64 && !kPadded));
  static constexpr int kRow = kDim * sizeof(Elem) + (kPadded ? 16 : 0), kTile = kBlockDim * kRow,
                       kArea = kTiles * kTile;
};

template <typename T>
__device__ __forceinline__ T* shared_at(int offset) {
  extern __shared__ __align__(1024) unsigned char dynamic_memory[];
  return reinterpret_cast<T*>(dynamic_memory + offset);
}

/// The tensors of a sweep: two that all warps see, two of which every warp has rows of its own, and
/// two of results.
enum Tensor { kSeen, kOwnRows = 2, kResults = 4, kTensors = 6 };

/// Where things lie in a sweep's shared memory, in bytes.
template <typename G, Sweep kSweep>
struct Memory {
  static constexpr bool kSums = kSweep == Sweep::kSumOfKeys || kSweep == Sweep::kSumOfQueries;
  static constexpr bool kOfQueries = kSweep == Sweep::kKeys || kSweep == Sweep::kSumOfQueries;
  static constexpr int kOwnTensors = kSums ? 0 : kSweep == Sweep::kForward ? 1 : 2;
  // Numbers of a row that come with it: log_sum_exp, normalisers, the maps' dots, the near one.
  static constexpr int kNumberCount = kOfQueries ? 2 * G::kFields : 0;

  // Tiles of a ring: the chunk, the next one, and the halo; or the next two.
  static constexpr int kRing = kSums ? 3 * kTiles : 2 * kTiles + kHalo;
  static constexpr int kBand = 0;                                  // [2][kRing] tiles
  static constexpr int kOwn = kBand + 2 * kRing * G::kTile;        // [kOwnTensors][kTiles] tiles
  static constexpr int kFeatures = kOwn + kOwnTensors * G::kArea;  // [kMaps][kTiles] tiles
  static constexpr int kState = kFeatures + G::kMaps * G::kArea;   // [kMaps][kDim] rows
  static constexpr int kStateOfMap = G::kDim * G::kRow;
  static constexpr int kNumbers = kState + (kSums ? 0 : G::kMaps * kStateOfMap);
  static constexpr int kKeySums = kNumbers + kNumberCount * kRing * kBlockDim * sizeof(float);
  // float [maps][kDim]; forward, see KeySumOperands: as many bytes.
  static constexpr int kExchange = kKeySums + (kSums ? 0 : G::kMaps * G::kDim * sizeof(float));
  static constexpr int kExchangeFloats = G::kFields * G::kWarps * kBlockDim;
  // float [log_sum_exp, then the maps' normalisers][warps][16]: of own rows
  static constexpr int kOwnNumbers =
      kExchange + (kSweep == Sweep::kQueries ? kExchangeFloats * sizeof(float) : 0);
  // uint4 [warps][kBlocks][32]: see OwnRows.
  static constexpr int kDecay =
      kOwnNumbers + (kSweep == Sweep::kQueries ? kExchangeFloats * sizeof(float) : 0);
  static constexpr bool kKeepsDecay = G::kSlices == 1 && G::kMaps <= 2 &&
                                      (kSweep == Sweep::kQueries || kSweep == Sweep::kKeys) &&
                                      (G::kMaps > 1 || !G::kWarpgroup);
  static constexpr int kRows = kDecay + (kKeepsDecay ? G::kArea : 0);  // Elem* [tensors]: see Walk
  static constexpr int kBytes = kRows + kTensors * int(sizeof(Elem*));
};

/// Whether heads have a piece of the channels that there is room for.
template <typename G>
__device__ __forceinline__ bool has_piece(int head_dim, int piece) {
  return has_channel<G>(head_dim, piece * kPiece);
}

/// The chunks [begin, end) that a thread block walks, and what a warp has to do there.
template <typename G>
struct Place {
  int pair, b, h, segment;
  int begin, end;
  int warp, tile, slice;  // tile: of the chunk, the rows of this warp

  __device__ explicit Place(const SweepArgs& args) {
    pair = blockIdx.x / args.segments, segment = blockIdx.x % args.segments;
    b = pair / args.heads, h = pair % args.heads;
    begin = segment_begin(args, segment) / kChunk;
    end = (segment_begin(args, segment + 1) + kChunk - 1) / kChunk;
    // The same in every lane, as the compiler sees from the shuffle.
    warp = __shfl_sync(~0u, threadIdx.x / kWarpSize, 0);
    slice = warp / kTiles, tile = warp % kTiles;
    // The last rows see the most columns. Of two blocks on a multiprocessor one has them the other
    // way round, so that no scheduler has two warps with them. A warpgroup has rows in their order.
    if (!G::kWarpgroup && 2 * blockIdx.x >= gridDim.x) tile = kTiles - 1 - tile;
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
    if constexpr (G::kSlices == 1) {
      __syncwarp();
    } else {
      named_barrier(1 + tile, G::kSlices * kWarpSize);
    }
  }
};

/// c = a b^T: add_product to zeros that need no registers.
__device__ __forceinline__ void set_product(Block& c, const Fragment& a, const Fragment& b) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%10,%10,%10,%10};\n"
        : "=f"(c[n][0]), "=f"(c[n][1]), "=f"(c[n][2]), "=f"(c[n][3])
        : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[n]), "r"(b.r[2 + n]),
          "f"(0.f));
  }
}

/// Bytes into a tile where a row's piece of sixteen bytes begins.
template <typename G>
__device__ __forceinline__ int piece_place(int row, int piece) {
  return row * G::kRow + ((G::kPadded ? piece : piece ^ (row & 7)) << 4);
}
/// From a place in piece 0 (or 1, by even numbers) of a row to the same place `pieces` further.
template <typename G>
__device__ __forceinline__ int further(int place, int pieces) {
  return G::kPadded ? place + (pieces << 4) : place ^ pieces << 4;
}

/// Sixteen rows and columns of a tile as operands: `tile` is its place in shared memory, `s` the
/// block of sixteen channels. Turned: the tile's columns as rows.
template <typename G>
struct Loader {
  int rows, turned;  // this lane's place in a tile

  __device__ explicit Loader(int lane = lane_id()) {
    rows = piece_place<G>(lane % 16, lane / 16);
    turned = piece_place<G>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  }
  __device__ __forceinline__ void forget() { asm volatile("" : "+r"(rows), "+r"(turned)); }
  __device__ __forceinline__ Fragment left(int tile, int s) const {
    Fragment f;
    Bf16::ldmatrix4(f.r, shared_at<Elem>(tile + further<G>(rows, 2 * s)));
    return f;
  }
  __device__ __forceinline__ Fragment left_turned(int tile, int s) const {
    Fragment f;
    Bf16::ldmatrix4_transposed(f.r, shared_at<Elem>(tile + further<G>(turned, 2 * s)));
    return f;
  }
  __device__ __forceinline__ Fragment right(int tile, int s) const {
    return load_right_at(shared_at<Elem>(tile + further<G>(turned, 2 * s)));
  }
  __device__ __forceinline__ Fragment right_turned(int tile, int s) const {
    return load_turned_right_at(shared_at<Elem>(tile + further<G>(rows, 2 * s)));
  }
};

/// Bytes into a tile where this lane's pair of columns of row g begins, as a product's result has
/// it; that of piece n is further() by n, that of row g + 8 by 8 rows.
template <typename G>
__device__ __forceinline__ int result_place() {
  return piece_place<G>(lane_id() / 4, 0) + lane_id() % 4 * 4;
}

}  // namespace fmmformer::cuda::chunks
