// SPDX-License-Identifier: Apache-2.0
// The tokens that a walk meets: two tensors' rows that all warps see (keys and values, or queries
// and grad_out) in rings of tiles, and rows of each warp's own. The next chunk's are under way
// while this one is worked on.
#pragma once

#include "attention/fmm/cuda/chunks/shape.cuh"
#include "attention/fmm/cuda/warpgroup.cuh"

namespace fmmformer::cuda::chunks {

/// Where a row's numbers are among those of Memory::kNumbers.
constexpr int kLogSumExp = 0;
template <typename G>
constexpr int kNorm = 1;  // of the first map
template <typename G>
constexpr int kDot = 1 + G::kMaps;  // of the first map; the near field's follows the last

template <typename G, Sweep kSweep>
struct Walk {
  using M = Memory<G, kSweep>;
  static constexpr bool kBackwards = kSweep == Sweep::kKeys;
  static constexpr int kDirection = kBackwards ? -1 : 1;
  const SweepArgs& args;
  Place<G>& place;
  int chunk;             // the walk's
  int slot = 0;          // of its first tile in the ring
  uint64_t live = 0;     // its live tokens,
  uint64_t beside = 0;   // those of the chunk that was before it,
  uint64_t coming = 0;   // and of the next
  uint8_t looked_at[2];  // this lane's tokens of the chunk that is copied next

  __device__ Walk(const SweepArgs& args, Place<G>& place)
      : args(args), place(place), chunk(kBackwards ? place.end - 1 : place.begin) {
#pragma unroll
    for (int tensor = 0; tensor < kTensors; ++tensor) {
      if (threadIdx.x != tensor) continue;
      const View& of = view(tensor);
      shared_at<Elem*>(M::kRows)[tensor] =
          static_cast<Elem*>(of.data) + place.b * of.batch_stride + place.h * of.head_stride;
    }
    __syncthreads();
  }

  __device__ __forceinline__ const View& view(int tensor) const {
    constexpr bool kOfKeys = kSweep == Sweep::kKeys;
    if (tensor == kSeen) return M::kOfQueries ? args.q : args.k;
    if (tensor == kSeen + 1) return M::kOfQueries ? args.grad_out : args.v;
    if (tensor == kOwnRows) return kOfKeys ? args.k : args.q;
    if (tensor == kOwnRows + 1) return kOfKeys ? args.v : args.grad_out;
    if (tensor == kResults) {
      return kSweep == Sweep::kForward ? args.out : kOfKeys ? args.dk : args.dq;
    }
    return args.dv;
  }
  /// Where a token's piece of sixteen bytes begins in memory. What the pair's rows begin with comes
  /// from shared memory: it takes many instructions to compute, or registers to keep.
  __device__ __forceinline__ Elem* row_piece(int tensor, int of_token, int piece) const {
    char* rows = reinterpret_cast<char*>(shared_at<Elem*>(M::kRows)[tensor]);
    return reinterpret_cast<Elem*>(rows + int64_t(of_token) * row_bytes(tensor) + piece * 16);
  }
  __device__ __forceinline__ int row_bytes(int tensor) const {  // see View::walkable
    return static_cast<int>(view(tensor).row_stride) * int(sizeof(Elem));
  }

  /// Tile `index` of the ring, counted from the chunk's first.
  __device__ __forceinline__ int ring_place(int index) const {
    const unsigned at = slot + index + (index < 0 ? M::kRing : 0);
    return min(at, at - M::kRing);  // the latter is huge unless it is the place
  }
  __device__ __forceinline__ int tile(int which, int index) const {
    return M::kBand + (which * M::kRing + ring_place(index)) * G::kTile;
  }
  /// One of the numbers that sixteen rows have, see Memory.
  __device__ __forceinline__ const float* numbers(int which, int index) const {
    return shared_at<float>(M::kNumbers) + (which * M::kRing + ring_place(index)) * kBlockDim;
  }
  __device__ __forceinline__ int own_tile(int which) const {
    return M::kOwn + which * G::kArea + place.tile * G::kTile;
  }
  /// Bits of the live tokens of a tile: -2 to 5.
  __device__ __forceinline__ uint32_t live_bits(int index) const {
    const uint64_t bits = index < 0 || index >= kTiles ? beside : live;
    return static_cast<uint32_t>(bits >> (index & (kTiles - 1)) * kBlockDim) & 0xffffu;
  }
  __device__ __forceinline__ int token(int index) const {
    return chunk * kChunk + index * kBlockDim;
  }

  /// Begins to copy sixteen rows for this warp: its slice of the channels.
  __device__ void begin_own(int which, int of_chunk, uint64_t of_live) const {
    const int piece = place.slice * (kSlice / kPiece) + lane_id() % 8, row = lane_id() / 8;
    const int first = of_chunk * kChunk + place.tile * kBlockDim;
    const Elem* from = row_piece(kOwnRows + which, first + row, piece);
    const int64_t stride = view(kOwnRows + which).row_stride;
    const uint32_t bits = has_piece<G>(args.head_dim, piece)
                              ? static_cast<uint32_t>(of_live >> place.tile * kBlockDim)
                              : 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      copy_async(shared_at<Elem>(own_tile(which) + piece_place<G>(row + 4 * i, piece)),
                 from + 4 * i * stride, bits >> (row + 4 * i) & 1);
    }
  }

  /// The same for numbers of the rows: log_sum_exp and the maps' normalisers.
  __device__ void begin_own_numbers(int of_chunk) const {
    const int row = lane_id() % kBlockDim, first = of_chunk * kChunk + place.tile * kBlockDim;
#pragma unroll
    for (int i = 0; i < G::kFields; i += kWarpSize / kBlockDim) {
      const int n = i + lane_id() / kBlockDim;
      const float* source = n < G::kFields ? row_numbers(n) : nullptr;
      if (source) copy_number_async(own_number(n, row), source + min(first + row, args.length - 1));
    }
  }
  __device__ __forceinline__ float* own_number(int which, int row) const {
    return shared_at<float>(M::kOwnNumbers) + (which * G::kWarps + place.warp) * kBlockDim + row;
  }

  /// Those of rows g and g + 8.
  __device__ __forceinline__ void own_numbers(float (&numbers)[2], int which) const {
    numbers[0] = *own_number(which, row_of(0)), numbers[1] = *own_number(which, row_of(2));
  }

  /// Walks the chunks: prepare(), with the chunk's tiles there, and between two barriers body(),
  /// with the own rows too. begin_own_rows(chunk, live) copies those; first() comes while the first
  /// copies are under way.
  template <typename BeginOwnRows, typename First, typename Prepare, typename Body>
  __device__ __forceinline__ void run(const BeginOwnRows& begin_own_rows, const First& first,
                                      const Prepare& prepare, const Body& body) {
    look_at(chunk - kDirection);
    beside = live_tokens(chunk - kDirection);
    look_at(chunk);
    live = live_tokens(chunk);
    look_at(chunk + kDirection);
    if (args.has_near) {
      copy<kHalo>(kBackwards ? kTiles : -kHalo,
                  kBackwards ? beside : beside >> (kChunk - kHalo * kBlockDim));
    }
    copy<kTiles>(0, live);
    commit_copies();
    begin_own_rows(chunk, live);
    commit_copies();
    first();
    meet_with_older_copies();
#pragma unroll 1
    for (int left = place.end - place.begin; left > 0; --left) {
      place.forget();
      prepare();
      if (left > 1) begin(kDirection, coming);
      commit_copies();
      meet_with_older_copies();
      body();
      if (left > 1) begin_own_rows(chunk + kDirection, coming);
      commit_copies();
      meet_with_older_copies();
      chunk += kDirection, slot = ring_place(kDirection * kTiles);
      beside = live, live = coming;
    }
  }

  /// The same without own rows, in sums: a step is short, so two chunks are under way.
  template <typename Prepare, typename Body>
  __device__ __forceinline__ void run_ahead(const Prepare& prepare, const Body& body) {
    int left = place.end - place.begin;
    look_at(chunk);
    begin(0, live);
    commit_copies();
    if (left > 1) begin(1, coming);
    commit_copies();
    meet_with_older_copies();
#pragma unroll 1
    for (; left > 0; --left) {
      uint64_t later = 0;
      if (left > 2) begin(2, later);
      commit_copies();
      prepare();
      meet_with_older_copies();
      body();
      __syncthreads();
      ++chunk, slot = ring_place(kTiles);
      live = coming, coming = later;
    }
  }

 private:
  /// All threads have written what they had to, and the copies are there but for the newest group.
  __device__ __forceinline__ void meet_with_older_copies() const {
    wait_for_older_copies();
    if constexpr (G::kWarpgroup) show_to_warpgroup();
    __syncthreads();
  }
  /// Begins to copy the chunk that was looked at last, so many from the walk's.
  __device__ __forceinline__ void begin(int further, uint64_t& of_live) {
    of_live = live_tokens(chunk + further);
    look_at(chunk + further + kDirection);
    copy<kTiles>(further * kTiles, of_live);
  }
  __device__ void look_at(int of_chunk) {
    if (!args.token_mask) return;
    const bool* mask = args.token_mask + int64_t(place.b) * args.length;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int at = of_chunk * kChunk + i * kWarpSize + lane_id();
      looked_at[i] = mask[min(max(at, 0), args.length - 1)];
    }
  }
  /// Of the chunk that was looked at last.
  __device__ uint64_t live_tokens(int of_chunk) const {
    const int inside = min(max(args.length - of_chunk * kChunk, 0), kChunk);
    uint64_t bits = of_chunk < 0 || inside == 0 ? 0 : ~uint64_t(0) >> (kChunk - inside);
    if (args.token_mask) {
      const uint64_t low = __ballot_sync(~0u, looked_at[0] != 0);
      const uint64_t high = __ballot_sync(~0u, looked_at[1] != 0);
      bits &= high << kWarpSize | low;
    }
    return bits;
  }
  /// Copies tiles from `index` on, counted from the walk's chunk. Dead tokens, those beyond the
  /// sequence, and channels that the head does not have become zeros, whatever memory holds there.
  template <int kCount>
  __device__ __forceinline__ void copy(int index, uint64_t bits) const {
    const int row = threadIdx.x / G::kPieces, piece = threadIdx.x % G::kPieces;
    const int offset = piece_place<G>(row, piece);
    const uint64_t mine = has_piece<G>(args.head_dim, piece) ? bits >> row : 0;
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const Elem* from = row_piece(kSeen + which, token(index) + row, piece);
      const int64_t stride = view(kSeen + which).row_stride;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        // Without bytes to read, the source's address does not matter.
        copy_async(shared_at<Elem>(tile(which, index + i) + offset), from + i * kBlockDim * stride,
                   mine >> i * kBlockDim & 1);
      }
    }
    if constexpr (M::kOfQueries) copy_numbers<kCount>(index);
  }
  template <int kCount>
  __device__ __forceinline__ void copy_numbers(int index) const {
    constexpr int kTokens = kCount * kBlockDim;
    const int row = threadIdx.x % kTokens;
    const int from = min(max(token(index) + row, 0), args.length - 1);
#pragma unroll 1
    for (int n = threadIdx.x / kTokens; n < M::kNumberCount; n += G::kThreads / kTokens) {
      const float* source = row_numbers(n);
      if (!source) continue;
      copy_number_async(const_cast<float*>(numbers(n, index + row / kBlockDim)) + row % kBlockDim,
                        source + from);
    }
  }
  __device__ const float* row_numbers(int n) const {
    constexpr int kMaps = G::kMaps;
    const bool of_near = n == 0 || n == 2 * kMaps + 1;
    if (of_near && !args.has_near) return nullptr;
    if (n == 0) return args.log_sum_exp + place.row_index(args, 1, 0);
    if (n > kMaps) return args.row_dots + place.row_index(args, G::kFields, n - 1 - kMaps);
    return args.normaliser == Normaliser::kRowSum
               ? args.normalisers + place.row_index(args, kMaps, n - 1)
               : nullptr;
  }
};

}  // namespace fmmformer::cuda::chunks
