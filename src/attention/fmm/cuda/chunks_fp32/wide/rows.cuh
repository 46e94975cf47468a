// SPDX-License-Identifier: Apache-2.0
// Own rows of heads of up to 128 channels: their features, and results on their way to memory.
#pragma once

#include "attention/fmm/cuda/chunks_fp32/wide/state.cuh"

namespace fmmformer::cuda::chunks_fp32 {

template <Sweep kSweep>
__device__ __forceinline__ int own_feature_tile(int tile) {
  return Memory<Wide, kSweep>::kOwnFeatures + tile * Wide::kTile;
}

/// Features of own rows of q or k as pairs, from a thread's share of the raw rows. Forward: and
/// each row's <f, z>, z being the sum of features before the chunk, and the row's shift, to
/// own_numbers.
template <typename G, Sweep kSweep>
__device__ __forceinline__ void make_own_features(const Share<Walk<G, kSweep>>& raw,
                                                  const Walk<G, kSweep>& walk) {
  using W = Walk<G, kSweep>;
  using M = Memory<G, kSweep>;
  static_assert(W::kPieces == kWarpSize && W::kShare == 4);
  const int high = high_of_piece(W::share_column());
  Piece f[W::kShare];
  with_paper_map<G>(walk.args.feature_maps[0], [&](auto feature, auto) {
#pragma unroll
    for (int i = 0; i < W::kShare * kPiece; ++i) {
      const float x = raw.x[i / kPiece][i % kPiece];
      // Of channels that the head does not have: not to be a row's largest.
      f[i / kPiece][i % kPiece] = walk.has_share() ? feature(x, decay_of(x)) : 0.f;
    }
  });
#pragma unroll
  for (int i = 0; i < W::kShare; ++i) {
    int shift = shift_for(walk.largest_own_feature());
    if constexpr (kSweep == Sweep::kForward) {
      shift = shift_of_row<W::kPieces>(f[i], shift);
      if (lane_id() == 0)
        *shared_at(M::kOwnNumbers + Wide::kChunk + W::share_row() + i * W::kRowsAtOnce) =
            __int_as_float(shift);
    }
    store_pairs(W::share_at(i, own_feature_tile<kSweep>), high, f[i], power_of_2(shift));
  }
  if constexpr (kSweep == Sweep::kForward) {
    Piece z;
    load_piece(z, shared_at(M::kKeySums + W::share_column()));
#pragma unroll
    for (int i = 0; i < W::kShare; ++i) {
      float f_z = (f[i][0] * z[0] + f[i][1] * z[1]) + (f[i][2] * z[2] + f[i][3] * z[3]);
#pragma unroll
      for (int other = 1; other < kWarpSize; other *= 2) f_z += __shfl_xor_sync(~0u, f_z, other);
      if (lane_id() == 0) *shared_at(M::kOwnNumbers + W::share_row() + i * W::kRowsAtOnce) = f_z;
    }
  }
}

/// The warp's channels of two tiles of pairs, times `scale`.
template <typename G>
__device__ __forceinline__ void load_channels(Block (&x)[Wide::kTiles], int tiles, float scale,
                                              int warp, const Loader<G>& load) {
#pragma unroll
  for (int tile = 0; tile < Wide::kTiles; ++tile) {
    const Left pairs = load.left(tiles + tile * Wide::kTile, warp);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 both = joined(pairs.high[i], pairs.low[i]);
      x[tile][i / 2][i % 2 * 2] = scale * both.x, x[tile][i / 2][i % 2 * 2 + 1] = scale * both.y;
    }
  }
}
/// Two numbers of each half of the warp's sixteen channels: those of this lane's columns.
__device__ __forceinline__ void column_pairs(float2 (&numbers)[2], const float* of_channels) {
  numbers[0] = *reinterpret_cast<const float2*>(of_channels + column_of(0, 0));
  numbers[1] = *reinterpret_cast<const float2*>(of_channels + column_of(1, 0));
}

/// What earlier passes left of the chunk's rows of out, dq, dk or dv, on its way to the
/// second-level cache while scores are formed. A lane names a sector.
template <typename G, Sweep kSweep>
__device__ __forceinline__ void fetch_sums(const Walk<G, kSweep>& walk, const Partial& partial) {
  if (!partial.sums || partial.first) return;
  const SweepArgs& args = walk.args;
  const Place<G>& place = walk.place;
  const int channel = place.warp * kBlockDim + lane_id() % 2 * 8;
  const int dim = channels<G>(args.head_dim);
  const int token = walk.token(0) + lane_id() / 2;
  if (!has_channel<G>(dim, channel)) return;
#pragma unroll
  for (int tile = 0; tile < Wide::kTiles; ++tile) {
    const int64_t row =
        int64_t(place.b) * args.length + min(token + tile * kBlockDim, args.length - 1);
    const float* at = partial.sums + (row * args.heads + place.h) * dim + channel;
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
  }
}

/// The warp's channels of out, dq, dk or dv, as far as the head has them. `partial`: the sums over
/// the passes, of which only the last one writes the tensor.
struct Results {
  float* to;          // this lane's first number of token 0
  const float* sums;  // ... of earlier passes; none in the first
  int64_t stride, sums_stride;
  float2 before[2 * Wide::kTiles][2];  // of earlier passes: rows g and g + 8 of a tile, halves

  template <typename G, Sweep kSweep>
  __device__ __forceinline__ Results(const Walk<G, kSweep>& walk, const View& view,
                                     const Partial& partial) {
    const SweepArgs& args = walk.args;
    const Place<G>& place = walk.place;
    const int channel = place.warp * kBlockDim + column_of(0, 0);
    const int dim = channels<G>(args.head_dim);
    sums_stride = int64_t(args.heads) * dim;
    float* const all = partial.sums + place.b * args.length * sums_stride + place.h * dim;
    const bool to_sums = partial.sums && !partial.last;
    to = (to_sums ? all : rows_of(view, place)) + channel;
    stride = to_sums ? sums_stride : view.row_stride;
    sums = partial.sums && !partial.first ? all + channel : nullptr;
  }
  /// Begins to load what earlier passes left, well before it is needed.
  template <typename G, Sweep kSweep>
  __device__ __forceinline__ void begin(const Walk<G, kSweep>& walk) {
#pragma unroll
    for (int i = 0; i < 4 * Wide::kTiles; ++i) {
      const int token = walk.token(i / 4) + row_of(i / 2 % 2 * 2);
      float2& x = before[i / 2][i % 2];
      x = make_float2(0.f, 0.f);
      if (sums && token < walk.args.length && has_half(walk, i % 2))
        x = *reinterpret_cast<const float2*>(sums + token * sums_stride + i % 2 * 8);
    }
  }
  /// Zeros for dead tokens. Four lanes' numbers are a sector.
  template <typename G, Sweep kSweep>
  __device__ __forceinline__ void write(const Walk<G, kSweep>& walk,
                                        const Block (&rows)[Wide::kTiles]) const {
#pragma unroll
    for (int i = 0; i < 4 * Wide::kTiles; ++i) {
      const int tile = i / 4, r = i / 2 % 2, token = walk.token(tile) + row_of(2 * r);
      const float* c = rows[tile][i % 2] + 2 * r;
      const bool alive = walk.live_bits(tile) >> row_of(2 * r) & 1;
      float2 both = before[i / 2][i % 2];
      if (alive) both.x += c[0], both.y += c[1];
      if (token < walk.args.length && has_half(walk, i % 2))
        *reinterpret_cast<float2*>(to + token * stride + i % 2 * 8) = both;
    }
  }

 private:
  /// Whether the head has half of the warp's channels.
  template <typename G, Sweep kSweep>
  static __device__ __forceinline__ bool has_half(const Walk<G, kSweep>& walk, int half) {
    return has_channel<G>(walk.args.head_dim, walk.place.warp * kBlockDim + half * 8);
  }
};

}  // namespace fmmformer::cuda::chunks_fp32
