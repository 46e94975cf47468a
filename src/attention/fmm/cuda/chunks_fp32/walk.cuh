// SPDX-License-Identifier: Apache-2.0
// The tokens that a walk meets: two tensors' rows that all warps see (keys and values, or queries
// and grad_out) in rings of tiles, and the chunk's own rows. The next chunk's are under way while
// this one is worked on. They come as fp32 numbers; a thread splits its share of them later, in
// their place (shares.cuh).
#pragma once

#include "attention/fmm/cuda/chunks_fp32/scaling.cuh"

namespace fmmformer::cuda::chunks_fp32 {

/// The first row of a view's (batch entry, head).
template <typename G>
__device__ __forceinline__ float* rows_of(const View& view, const Place<G>& place) {
  return static_cast<float*>(view.data) + place.b * view.batch_stride + place.h * view.head_stride;
}

/// Where a row's numbers are among those of Memory::kNumbers.
constexpr int kLogSumExp = 0;
constexpr int kNorm = 1;  // of the first map
template <typename G>
constexpr int kDot = 1 + G::kMaps;  // of the first map; the near field's follows the last

template <typename G, Sweep kSweep>
struct Walk {
  using M = Memory<G, kSweep>;
  using Scales = Scaling<M>;
  static constexpr bool kBackwards = kSweep == Sweep::kKeys;
  static constexpr int kDirection = kBackwards ? -1 : 1;
  static constexpr int kTiles = G::kTiles, kChunk = G::kChunk;
  const SweepArgs& args;
  Place<G>& place;
  int chunk;             // the walk's
  int slot = 0;          // of its first tile in the ring
  int turn = 0;          // which of three sets of maxima and shifts it has, if there are three
  uint64_t live = 0;     // its live tokens,
  uint64_t beside = 0;   // those of the chunk that was before it,
  uint64_t coming = 0;   // and of the next
  uint8_t looked_at[2];  // this lane's tokens of the chunk that is copied next

  __device__ Walk(const SweepArgs& args, Place<G>& place)
      : args(args), place(place), chunk(kBackwards ? place.end - 1 : place.begin) {}

  /// Tile `index` of the ring, counted from the chunk's first.
  __device__ __forceinline__ int ring_place(int index) const {
    const unsigned at = slot + index + (index < 0 ? M::kRing : 0);
    return min(at, at - M::kRing);  // the latter is huge unless it is the place
  }
  __device__ __forceinline__ int tile(int which, int index) const {
    return M::kBand + (which * M::kRing + ring_place(index)) * G::kTile;
  }
  /// The tensors of own rows.
  __device__ __forceinline__ const View& own_view(int which) const {
    return kSweep == Sweep::kKeys ? (which == 0 ? args.k : args.v)
                                  : (which == 0 ? args.q : args.grad_out);
  }
  /// The tensors that all warps see.
  __device__ __forceinline__ const View& view(int which) const {
    return M::kOfQueries ? (which == 0 ? args.q : args.grad_out) : (which == 0 ? args.k : args.v);
  }
  /// One of the numbers that sixteen rows have, see Memory.
  __device__ __forceinline__ float* numbers(int which, int index) const {
    return shared_at(M::kNumbers + (which * M::kRing + ring_place(index)) * kBlockDim);
  }
  __device__ __forceinline__ int own_tile(int which) const {
    return own_area(which) + place.tile * G::kTile;
  }
  static __device__ __forceinline__ int own_area(int which) { return M::kOwn + which * G::kArea; }
  __device__ __forceinline__ int feature_tile(int map, int index) const {
    const int tile = M::kFeatures + map * G::kArea + index * G::kTile;
    if constexpr (G::kFed) return tile + (chunk & 1) * M::kFeatureSet;
    return tile;
  }
  /// A map's dots of the chunk, as pairs.
  __device__ __forceinline__ int dot_pairs(int map) const {
    const int dots = M::kDotPairs + map * kChunk;
    if constexpr (G::kFed) return dots + (chunk & 1) * M::kDotSet;
    return dots;
  }
  /// Bits of the live tokens of a tile of the chunk or the halo.
  __device__ __forceinline__ uint32_t live_bits(int index) const {
    const uint64_t bits = index < 0 || index >= kTiles ? beside : live;
    return static_cast<uint32_t>(bits >> (index & (kTiles - 1)) * kBlockDim) & 0xffffu;
  }
  __device__ __forceinline__ int token(int index) const {
    return chunk * kChunk + index * kBlockDim;
  }
  /// The first tile of the ring that a band reaches beside the chunk.
  static constexpr int kFirstBeside = kBackwards ? kTiles : -kHalo;

  /// Which set of maxima and shifts is the chunk's.
  __device__ __forceinline__ int set() const { return G::kFed ? turn : chunk & 1; }
  /// That of the chunk before it.
  __device__ __forceinline__ int set_beside() const {
    return G::kFed ? (turn == 0 ? 2 : turn - 1) : set() ^ 1;
  }
  __device__ __forceinline__ int shift(int which) const { return Scales::shift(set(), which); }
  __device__ __forceinline__ float maximum(int which) const {
    return Scales::maximum(set(), which);
  }
  static __device__ __forceinline__ float feature_bound(float largest) {
    return 1.f + fmaxf(1.f, largest);
  }
  /// What a feature of the walk's rows is at most, times the factors that query features have;
  /// known when they have been made.
  __device__ __forceinline__ float largest_feature(int map) const {
    return Scales::bound(set(), map);
  }
  /// ... of own rows, without factors.
  __device__ __forceinline__ float largest_own_feature() const {
    return feature_bound(maximum(kOwnRows));
  }

  // A thread's share of tiles: a piece of every kRowsAtOnce-th row.
  static constexpr int kPieces = G::kDim / kPiece, kRowsAtOnce = kThreads / kPieces;
  static_assert(kBlockDim % kRowsAtOnce == 0);
  static constexpr int kRowsOfTile = kBlockDim / kRowsAtOnce, kShare = kTiles * kRowsOfTile;
  static __device__ __forceinline__ int share_row() { return Scales::copier() / kPieces; }
  static __device__ __forceinline__ int share_column() { return threadIdx.x % kPieces * kPiece; }
  /// Whether the head has these channels.
  __device__ __forceinline__ bool has_share() const {
    return has_channel<G>(args.head_dim, share_column());
  }
  /// Row i of it, where tile `t` is at place_of(t).
  template <typename PlaceOf>
  static __device__ __forceinline__ int share_at(int i, const PlaceOf& place_of) {
    return place_of(i / kRowsOfTile) + (i % kRowsOfTile * kRowsAtOnce + share_row()) * G::kRow;
  }

  /// This thread's piece of row `first`, where its share of a view's rows begins.
  __device__ __forceinline__ const float* share_of(const View& view, int first) const {
    return rows_of(view, place) + int64_t(first + share_row()) * view.row_stride + share_column();
  }
  /// Begins to copy the rows of a chunk, for the warps that own them.
  __device__ void begin_own(int which, const View& view, int of_chunk, uint64_t of_live) const {
    copy_rows<kTiles>(view, of_chunk * kChunk, of_live,
                      [&](int i) { return own_area(which) + i * G::kTile; });
  }

  /// The same for numbers of the rows: log_sum_exp and the maps' normalisers.
  __device__ void begin_own_numbers(int of_chunk) const {
    const int row = threadIdx.x % kChunk, n = threadIdx.x / kChunk;
    const float* source = n < G::kFields ? row_numbers(n) : nullptr;
    if (!source) return;
    copy_number_async(shared_at(M::kOwnNumbers + n * kChunk + row),
                      source + min(of_chunk * kChunk + row, args.length - 1));
  }
  /// Those of rows g and g + 8.
  __device__ __forceinline__ void own_numbers(float (&numbers)[2], int which) const {
    const float* mine = shared_at(M::kOwnNumbers + which * kChunk + place.tile * kBlockDim);
    numbers[0] = mine[row_of(0)], numbers[1] = mine[row_of(2)];
  }

  /// Live tokens of the first chunk and of the one before it.
  __device__ __forceinline__ void look_around() {
    look_at(chunk - kDirection);
    beside = live_tokens(chunk - kDirection);
    look_at(chunk);
    live = live_tokens(chunk);
    look_at(chunk + kDirection);
  }
  /// ... and of the next one.
  __device__ __forceinline__ void see_next() {
    coming = live_tokens(chunk + kDirection);
    look_at(chunk + 2 * kDirection);
  }
  /// The next chunk becomes the walk's.
  __device__ __forceinline__ void advance() {
    chunk += kDirection, slot = ring_place(kDirection * kTiles);
    turn = turn == 2 ? 0 : turn + 1;
    beside = live, live = coming;
  }

  /// Where the numbers `n` of this pair's rows are in memory; none: nowhere.
  __device__ const float* row_numbers(int n) const {
    const int dots = args.all_maps + 1;
    if (n == kLogSumExp) {
      return args.has_near ? args.log_sum_exp + place.row_index(args, 1, 0) : nullptr;
    }
    if (n == kDot<G> + G::kMaps) {
      return args.has_near ? args.row_dots + place.row_index(args, dots, args.all_maps) : nullptr;
    }
    if (n >= kDot<G>) {
      return args.row_dots + place.row_index(args, dots, args.first_map + n - kDot<G>);
    }
    return args.normaliser == Normaliser::kRowSum
               ? args.normalisers + place.row_index(args, args.all_maps, args.first_map + n - kNorm)
               : nullptr;
  }

  /// Begins to copy the first chunk, with what a band needs beside it.
  __device__ __forceinline__ void begin_first() const {
    if (args.has_near) {
      copy<kHalo>(kFirstBeside, kBackwards ? beside : beside >> (kChunk - kHalo * kBlockDim));
    }
    copy<kTiles>(0, live);
  }
  /// Begins to copy the chunk that was looked at last, so many from the walk's.
  __device__ __forceinline__ void begin(int further, uint64_t& of_live) {
    of_live = live_tokens(chunk + further);
    look_at(chunk + further + kDirection);
    copy<kTiles>(further * kTiles, of_live);
  }
  /// This lane's share of a chunk's mask is asked for.
  __device__ void look_at(int of_chunk) {
    if (!args.token_mask) return;
    const bool* mask = args.token_mask + int64_t(place.b) * args.length;
#pragma unroll
    for (int i = 0; i < kChunk / kWarpSize; ++i) {
      const int at = of_chunk * kChunk + i * kWarpSize + lane_id();
      looked_at[i] = mask[min(max(at, 0), args.length - 1)];
    }
  }
  /// Of the chunk that was looked at last.
  __device__ uint64_t live_tokens(int of_chunk) const {
    const int inside = min(max(args.length - of_chunk * kChunk, 0), kChunk);
    uint64_t bits = of_chunk < 0 || inside == 0 ? 0 : ~uint64_t(0) >> (64 - inside);
    if (args.token_mask) {
      uint64_t marked = 0;
#pragma unroll
      for (int i = 0; i < kChunk / kWarpSize; ++i)
        marked |= uint64_t(__ballot_sync(~0u, looked_at[i] != 0)) << i * kWarpSize;
      bits &= marked;
    }
    return bits;
  }

 private:
  /// Copies kCount tiles of a view from token `first` on to place_of(tile). Dead tokens, those
  /// beyond the sequence, and channels that the head does not have become zeros, whatever memory
  /// holds there.
  template <int kCount, typename PlaceOf>
  __device__ __forceinline__ void copy_rows(const View& view, int first, uint64_t bits,
                                            const PlaceOf& place_of) const {
    const int row = share_row();
    const float* from = share_of(view, first);
    if (!has_share()) bits = 0;
#pragma unroll
    for (int i = 0; i < kCount * kRowsOfTile; ++i) {
      const bool live_row = bits >> (row + i * kRowsAtOnce) & 1;
      // Without bytes to read, the source's address does not matter.
      copy_async(shared_at(share_at(i, place_of) + share_column()),
                 from + i * kRowsAtOnce * view.row_stride, live_row);
    }
  }
  /// Tiles of both tensors from `index` on, counted from the walk's chunk.
  template <int kCount>
  __device__ __forceinline__ void copy(int index, uint64_t bits) const {
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      copy_rows<kCount>(view(which), token(index), bits,
                        [&](int i) { return tile(which, index + i); });
    }
    if constexpr (M::kOfQueries) copy_numbers<kCount>(index);
  }
  template <int kCount>
  __device__ __forceinline__ void copy_numbers(int index) const {
    constexpr int kTokens = kCount * kBlockDim;
    const int row = Scales::copier() % kTokens;
    const int from = min(max(token(index) + row, 0), args.length - 1);
#pragma unroll 1
    for (int n = Scales::copier() / kTokens; n < M::kNumberCount; n += kThreads / kTokens) {
      const float* source = row_numbers(n);
      if (source)
        copy_number_async(numbers(n, index + row / kBlockDim) + row % kBlockDim, source + from);
    }
  }
};

}  // namespace fmmformer::cuda::chunks_fp32
