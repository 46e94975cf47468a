// SPDX-License-Identifier: Apache-2.0
// The tiles of sixteen tokens that the roles read, in shared memory: the step's own rows and those
// of the band around them, and how the next ones get there.
#pragma once

#include "attention/fmm/cuda/roles/shape.cuh"

namespace fmmformer::cuda::roles {

/// A tensor's rows of one (batch entry, head).
struct Rows {
  Elem* data = nullptr;  // none: not read
  int64_t stride = 0;
  int dim = 0;
  bool whole = false;  // pieces of sixteen bytes can be copied

  template <typename G>
  __device__ Rows(const View& view, int dim, const Place<G>& place)
      : data(static_cast<Elem*>(view.data)), stride(view.row_stride), dim(dim) {
    if (data) data += place.b * view.batch_stride + place.h * view.head_stride;
    whole = view.aligned && dim == G::kKeyDim;
  }
};

/// Rings of tiles: a tile's slot is its number modulo the ring's size.
template <typename G>
struct Tiles {
  static constexpr int kStride = G::kKeyStride, kTile = kBlockDim * kStride;
  // The next tile is under way and, without a barrier after the results, the last one still read.
  static constexpr int kOwnSlots = G::kResultBuffers == 1 ? 2 : 4;
  const Layout& layout;
  const SweepArgs& args;
  Place<G> place;
  int slice;        // of this warp's role: near roles each have a stage
  int current = 0;  // the step's tile

  /// Notes which tensors are read: the other side of the band, then the step's own rows; keys or
  /// queries, values or their gradients. A barrier must follow.
  __device__ void read_from(const View& band_keys, const View& band_values, const View& own_keys,
                            const View& own_values) const {
    if (threadIdx.x > 0) return;
    Rows* rows = shared_at<Rows>(layout.rows);
    rows[0] = Rows(band_keys, args.head_dim, place);
    rows[1] = Rows(band_values, args.value_dim, place);
    rows[2] = Rows(own_keys, args.head_dim, place);
    rows[3] = Rows(own_values, args.value_dim, place);
  }

  __device__ __forceinline__ bool in_ring(int tile) const {
    return G::kPlain || layout.stage < 0 ||
           (tile >= current - layout.before && tile <= current + layout.after);
  }
  __device__ __forceinline__ int slot(int tile) const {
    return in_ring(tile) ? tile & (layout.slots - 1) : layout.slots + slice;
  }
  __device__ __forceinline__ const Elem* band_tile(int which, int tile) const {
    if (!in_ring(tile)) return stage(which);
    return shared_at<Elem>(layout.band[which]) + (tile & (layout.slots - 1)) * kTile;
  }
  __device__ __forceinline__ Elem* own_tile(int which, int tile) const {
    return shared_at<Elem>(layout.own[which]) + tile % kOwnSlots * kTile;
  }
  /// Bit i: the tile's token i is live.
  __device__ __forceinline__ uint32_t live(int tile) const {
    if (args.token_mask) return shared_at<uint32_t>(layout.live)[slot(tile)];
    const int left = args.length - tile * kBlockDim;
    return left >= kBlockDim ? ~0u : (1u << left) - 1;
  }
  /// log_sum_exp and near dots of the tile's rows, [2][16]; of the keys' sweep alone.
  __device__ __forceinline__ const float* row_numbers(int tile) const {
    return shared_at<float>(layout.numbers) + slot(tile) * 2 * kBlockDim;
  }

  /// Begins to load a tile of the band and one of the step's own rows; each warp takes some of the
  /// pieces. Those outside of the sequence are left out. wait_for_copies and a barrier make them
  /// visible.
  __device__ __forceinline__ void begin(int band, int own) const {
    constexpr int kPieces = 5;
#pragma unroll 1
    for (int piece = place.warp; piece < kPieces; piece += blockDim.x / kWarpSize) {
      const bool of_band = piece != 2 && piece != 3;
      const int tile = of_band ? band : own;
      if (tile < 0 || tile * kBlockDim >= args.length) continue;
      if (piece == 4) {
        load_numbers(tile & (layout.slots - 1), tile);
        continue;
      }
      if (!of_band && layout.own[piece - 2] < 0) continue;
      const int base = of_band ? layout.band[piece] : layout.own[piece - 2];
      const int at = of_band ? tile & (layout.slots - 1) : tile % kOwnSlots;
      load_tile(shared_at<Elem>(base) + at * kTile, piece, tile);
    }
  }

  /// Makes sure that a tile of the band is there: one from beyond the ring replaces the stage's.
  /// For near roles alone.
  __device__ __forceinline__ void fetch(int tile) const {
    if (in_ring(tile)) return;
    __syncwarp();
    for (int which = 0; which < 2; ++which) {
      load_tile(stage(which), which, tile);
    }
    load_numbers(layout.slots + slice, tile);
    wait_for_copies();
    __syncwarp();
  }

 private:
  __device__ __forceinline__ Elem* stage(int which) const {
    return shared_at<Elem>(layout.stage) + (slice * 2 + which) * kTile;
  }
  /// Dead tokens and those beyond the sequence become zeros, whatever memory holds there.
  __device__ __forceinline__ void load_tile(Elem* to, int source, int tile) const {
    constexpr int kPiece = 8, kAcross = G::kKeyDim / kPiece, kRowsAtOnce = kWarpSize / kAcross;
    const Rows& rows = shared_at<Rows>(layout.rows)[source];
    const int row = lane_id() / kAcross, channel = lane_id() % kAcross * kPiece;
    const int first = tile * kBlockDim + row;
    const Elem* from = rows.data + first * rows.stride + channel;
    to += row * kStride + channel;
    const bool all_live = !args.token_mask && (tile + 1) * kBlockDim <= args.length;
#pragma unroll
    for (int i = 0; i < kBlockDim / kRowsAtOnce; ++i) {
      const bool live = all_live || place.live(args, first + i * kRowsAtOnce);
      if (G::kPlain || rows.whole) {
        copy_async(to, live ? from : rows.data, live);
      } else {
        for (int e = 0; e < kPiece; ++e)
          to[e] = live && channel + e < rows.dim ? from[e] : Elem(0.f);
      }
      from += kRowsAtOnce * rows.stride, to += kRowsAtOnce * kStride;
    }
  }
  __device__ __forceinline__ void load_numbers(int at, int tile) const {
    const int first = tile * kBlockDim;
    if (args.token_mask) {
      const uint32_t bits = place.live_bits(args, first);
      if (lane_id() == 0) shared_at<uint32_t>(layout.live)[at] = bits;
    }
    if (layout.numbers < 0) return;
    const int token = min(first + lane_id() % kBlockDim, args.length - 1);
    const float* from =
        lane_id() < kBlockDim
            ? args.log_sum_exp + place.row_index(args, token)
            : args.row_dots + place.row_index(args, args.all_maps + 1, args.all_maps, token);
    copy_number_async(shared_at<float>(layout.numbers) + at * 2 * kBlockDim + lane_id(), from);
  }
};

}  // namespace fmmformer::cuda::roles
