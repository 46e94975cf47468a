// SPDX-License-Identifier: Apache-2.0
// A warp's own tiles of sixteen tokens in shared memory, or a team's, and how the next ones get
// there.
#pragma once

#include "attention/fmm/cuda/barrier.cuh"
#include "attention/fmm/cuda/strips/operands.cuh"

namespace fmmformer::cuda::strips {

/// Which pieces of sixteen bytes of a tile a lane copies: one of every kRowsAtOnce-th row.
template <typename G>
struct Pieces {
  static constexpr int kPiece = 16 / sizeof(ElemOf<G>), kAcross = G::kDim / kPiece,
                       kRowsAtOnce = kWarpSize / kAcross;
  static constexpr int kRounds = kBlockDim / kRowsAtOnce;
  static __device__ __forceinline__ int row() { return lane_id() / kAcross; }
  static __device__ __forceinline__ int channel() { return lane_id() % kAcross * kPiece; }
  /// The lane's piece in round i, of a tile in shared memory.
  static __device__ __forceinline__ int shared_offset(int i) {
    return offset_of<G>(row() + i * kRowsAtOnce, channel());
  }
};
/// A tensor's rows of one (batch entry, head), tile after tile. Nothing here differs by lane:
/// registers are scarce.
template <typename G>
struct Rows {
  const View& view;
  ElemOf<G>* next;  // the next tile's

  __device__ Rows(const View& view, const Strip& strip) : view(view) {
    next = static_cast<ElemOf<G>*>(view.data) + strip.b * view.batch_stride +
           strip.h * view.head_stride;
  }
  __device__ __forceinline__ void skip(int tiles) {
    next += int64_t(tiles) * kBlockDim * view.row_stride;
  }
  /// The lane's first piece of the next tile.
  __device__ __forceinline__ ElemOf<G>* piece() const {
    return next + (Pieces<G>::row() * static_cast<int>(view.row_stride) + Pieces<G>::channel());
  }
  /// Dead tokens and those beyond the sequence become zeros, whatever memory holds there.
  __device__ __forceinline__ void copy_tile(ElemOf<G>* to, uint32_t live, int direction) {
    using P = Pieces<G>;
    if constexpr (G::kTeam) {
      for (int i = threadIdx.x; i < kBlockDim * P::kAcross; i += blockDim.x) {
        const int row = i / P::kAcross, channel = i % P::kAcross * P::kPiece;
        copy_async(to + offset_of<G>(row, channel),
                   next + (row * static_cast<int>(view.row_stride) + channel), live >> row & 1);
      }
    } else {
      const ElemOf<G>* from = piece();
#pragma unroll
      for (int i = 0; i < P::kRounds; ++i) {
        // Without bytes to read, the source's address does not matter.
        copy_async(to + P::shared_offset(i), from + i * P::kRowsAtOnce * view.row_stride,
                   live >> (P::row() + i * P::kRowsAtOnce) & 1);
      }
    }
    skip(direction);
  }
};

/// Numbers that rows have in memory, [length] each: a half of a warp copies one. Where they are is
/// in shared memory, for registers would be spilled, and what is spilled comes from far.
template <int kCount>
struct Numbers {
  static constexpr int kAtOnce = kWarpSize / kBlockDim;
  const float** rows;  // [kCount], or none

  /// Before they are used, __syncwarp.
  __device__ __forceinline__ void read(int which, const float* from) {
    if (lane_id() == 0) rows[which] = from;
  }
  /// The lane's, of the two from `first` on.
  __device__ __forceinline__ const float* mine(int first) const {
    const int which = first + lane_id() / kBlockDim;
    return which < kCount ? rows[which] : nullptr;
  }
};

/// Rings of four tiles: a token's row is its number modulo 64. kOwn: how many tensors' rows the
/// walk reads of its tile alone; kNumbers: how many numbers a row.
template <typename G, bool kBackwards, int kOwn, int kNumbers>
struct Tiles {
  static constexpr int kRing = kSlots * kBlockDim, kDirection = kBackwards ? -1 : 1;
  const Layout& layout;
  const SweepArgs& args;
  const Strip& strip;
  Rows<G> band[2], own[2];  // keys or queries, values or their gradients
  Numbers<kNumbers> numbers;
  int memory;           // the warp's own
  int before, after;    // tiles of the band on either side
  const uint8_t* mask;  // the batch entry's tokens, or none
  uint8_t coming = 0;   // this lane's of the next tile of the band: loaded a step ahead
  // Live tokens of the ring's tiles, by ascending token; the newest tile's are the highest bits,
  // backwards the lowest.
  uint64_t window = 0;

  __device__ Tiles(const Layout& layout, const SweepArgs& args, const Strip& strip,
                   const View& band_keys, const View& band_values, const View& own_keys,
                   const View& own_values, int before, int after)
      : layout(layout),
        args(args),
        strip(strip),
        band{Rows<G>(band_keys, strip), Rows<G>(band_values, strip)},
        own{Rows<G>(own_keys, strip), Rows<G>(own_values, strip)},
        numbers{shared_at<const float*>(layout.warps + strip.index * layout.warp_bytes +
                                        layout.number_rows)},
        memory(layout.warps + strip.index * layout.warp_bytes),
        before(before),
        after(after) {
    mask = args.token_mask
               ? reinterpret_cast<const uint8_t*>(args.token_mask) + int64_t(strip.b) * args.length
               : nullptr;
  }

  __device__ __forceinline__ ElemOf<G>* band_row(int which, int token) const {
    return shared_at<ElemOf<G>>(memory + layout.band[which]) + (token & (kRing - 1)) * G::kStride;
  }
  __device__ __forceinline__ ElemOf<G>* band_tile(int which, int tile) const {
    return band_row(which, tile * kBlockDim);
  }
  __device__ __forceinline__ ElemOf<G>* own_tile(int which, int tile) const {
    return shared_at<ElemOf<G>>(memory + layout.own[which]) + (tile & 1) * G::kTile;
  }
  __device__ __forceinline__ float* number(int which, int token) const {
    return shared_at<float>(memory + layout.numbers) + which * kRing + (token & (kRing - 1));
  }
  /// Bit i: token i from the walk's tile on is live, for i below 16; `offset` tokens further.
  __device__ __forceinline__ uint32_t live(int offset = 0) const {
    const int tile = kBackwards ? before + 1 : kSlots - 2 - after;
    return static_cast<uint32_t>(window >> (tile * kBlockDim + offset)) & 0xffffu;
  }

  /// Begins to load the next tile of the band, `tile`; wait_for_copies and __syncwarp make it
  /// visible.
  __device__ __forceinline__ void begin_band(int tile) {
    const int inside = min(max(args.length - tile * kBlockDim, 0), kBlockDim);
    uint32_t bits = tile < 0 ? 0u : (1u << inside) - 1;
    if (mask) {
      bits &= __ballot_sync(~0u, coming != 0);
      look_at(tile + kDirection);
    }
    push(bits);
#pragma unroll
    for (int which = 0; which < 2; ++which)
      band[which].copy_tile(band_tile(which, tile), bits, kDirection);
    copy_numbers(tile);
  }
  /// ... and the walk's next tile of rows of its own; its band's tiles are under way already.
  __device__ __forceinline__ void begin_own(int tile) {
    const int at = kBackwards ? before : kSlots - 1 - after;
    const uint32_t bits = static_cast<uint32_t>(window >> at * kBlockDim) & 0xffffu;
#pragma unroll
    for (int which = 0; which < kOwn; ++which)
      own[which].copy_tile(own_tile(which, tile), bits, kDirection);
  }
  __device__ __forceinline__ void push(uint32_t bits) {
    window = kBackwards ? window << kBlockDim | bits
                        : window >> kBlockDim | uint64_t(bits) << (kSlots - 1) * kBlockDim;
  }
  /// Waits until what was begun is there and nobody reads the oldest tile any more.
  __device__ __forceinline__ void arrive() const {
    wait_for_copies();
    meet();
  }
  /// Waits for the warps of the strip. A team's come from walks of their own, of a map or of the
  /// band, so that this is no place for __syncthreads.
  __device__ __forceinline__ void meet() const {
    if constexpr (G::kTeam)
      meet_block();
    else
      __syncwarp();
  }
  /// Reads which tokens of a tile are live, for the next begin_band.
  __device__ __forceinline__ void look_at(int tile) {
    if (!mask) return;
    const int token = tile * kBlockDim + lane_id() % kBlockDim;
    coming = mask[min(max(token, 0), args.length - 1)];
  }

 private:
  __device__ __forceinline__ void copy_numbers(int tile) const {
    const int token = tile * kBlockDim + lane_id() % kBlockDim;
    const int from = min(max(token, 0), args.length - 1);
#pragma unroll
    for (int i = 0; i < kNumbers; i += numbers.kAtOnce) {
      const float* rows = numbers.mine(i);
      if (!rows || (G::kTeam && i / numbers.kAtOnce % strip.warps != strip.warp)) continue;
      copy_number_async(number(i + lane_id() / kBlockDim, token), rows + from);
    }
  }
};

/// Walks the tiles [first, last), backwards from the last one on: body(tile), with the next ones
/// under way.
template <typename G, bool kBackwards, int kOwn, int kNumbers, typename Body>
__device__ __forceinline__ void walk(Tiles<G, kBackwards, kOwn, kNumbers>& tiles, int first,
                                     int last, const Body& body) {
  if (first >= last) return;
  constexpr int kDirection = kBackwards ? -1 : 1;
  const int start = kBackwards ? last - 1 : first;
  // The band's newest tile, and how many fill its ring before the first step.
  int newest = start - kDirection * (kBackwards ? tiles.after : tiles.before);
  const int fill = tiles.before + tiles.after + 1;
#pragma unroll
  for (int which = 0; which < 2; ++which) tiles.band[which].skip(newest);
#pragma unroll
  for (int which = 0; which < kOwn; ++which) tiles.own[which].skip(start);
  tiles.look_at(newest);
  __syncwarp();  // Numbers know where
#pragma unroll 1
  for (int i = 0; i < fill; ++i, newest += kDirection) tiles.begin_band(newest);
  tiles.begin_own(start);
  tiles.arrive();
  int tile = start;
#pragma unroll 1
  for (int left = last - first; left > 0; --left, tile += kDirection, newest += kDirection) {
    if (left > 1) {
      tiles.begin_band(newest);
      tiles.begin_own(tile + kDirection);
    } else {
      tiles.push(0);
    }
    body(tile);
    tiles.arrive();
  }
}

}  // namespace fmmformer::cuda::strips
