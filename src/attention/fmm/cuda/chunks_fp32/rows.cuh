// SPDX-License-Identifier: Apache-2.0
// A warp's own rows: their features as operands, slopes, and results on their way to memory.
#pragma once

#include "attention/fmm/cuda/chunk_rows.cuh"
#include "attention/fmm/cuda/chunks_fp32/chunk_features.cuh"

namespace fmmformer::cuda::chunks_fp32 {

/// The shift of a row of features, of which kPieces lanes have a piece each: `usual`, or its own,
/// where all are so small that bits would be lost.
template <int kPieces>
__device__ __forceinline__ int shift_of_row(const Piece& f, int usual) {
  float largest = fmaxf(fmaxf(f[0], f[1]), fmaxf(f[2], f[3]));
  const unsigned small = __ballot_sync(~0u, largest < 1.f / 64);
  const auto is_small = [&](int row) {
    const unsigned lanes = (~0u >> (kWarpSize - kPieces)) << row * kPieces;
    return (small & lanes) == lanes;
  };
  bool any_small = false;
#pragma unroll
  for (int row = 0; row < kWarpSize / kPieces; ++row) any_small |= is_small(row);
  if (!any_small) return usual;
#pragma unroll
  for (int other = 1; other < kPieces; other *= 2)
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, other));
  return is_small(lane_id() / kPieces) ? shift_for(largest) : usual;
}

/// Features of the sixteen own rows of q or k that slices have in common, made by all of them,
/// where own tensor 1 was; `shift`: of rows g and g + 8. Forward: and each row's <f, z>, z being
/// the sum of features before the chunk, to own_numbers. The slices meet before and after.
template <typename G, Sweep kSweep>
__device__ __forceinline__ void make_own_features(int (&shift)[2], int l,
                                                  const Walk<G, kSweep>& walk) {
  using W = Walk<G, kSweep>;
  using M = Memory<G, kSweep>;
  constexpr int kRowsAtOnce = G::kSlices * kWarpSize / W::kPieces, kShare = kBlockDim / kRowsAtOnce;
  const int thread = walk.place.slice * kWarpSize + lane_id();
  const int first = thread / W::kPieces, column = thread % W::kPieces * kPiece;
  const int high = high_of_piece(column);
  const float raw_scale = power_of_2(-walk.shift(kOwnRows));
  const auto row_of_share = [&](int i) { return (first + i * kRowsAtOnce) * G::kRow; };
  Piece x[kShare];
#pragma unroll
  for (int i = 0; i < kShare; ++i)
    load_pairs(x[i], walk.own_tile(0) + row_of_share(i), high, raw_scale);
  walk.place.meet_slices();
  with_paper_map<G>(walk.args.feature_maps[l], [&](auto feature, auto) {
#pragma unroll
    for (int i = 0; i < kShare * kPiece; ++i) {
      float& number = x[i / kPiece][i % kPiece];
      number = feature(number, decay_of(number));
      if (!has_channel<G>(walk.args.head_dim, column)) number = 0.f;  // not to be a row's largest
    }
  });
  shift[0] = shift[1] = shift_for(walk.largest_own_feature());
  float* const numbers = shared_at(M::kOwnNumbers + walk.place.tile * kBlockDim);
  if constexpr (kSweep == Sweep::kForward) {
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      const int of_row = shift_of_row<W::kPieces>(x[i], shift[0]);
      store_pairs(walk.own_tile(1) + row_of_share(i), high, x[i], power_of_2(of_row));
      if (column == 0) numbers[G::kChunk + first + i * kRowsAtOnce] = __int_as_float(of_row);
    }
    Piece z;
    load_piece(z, shared_at(M::kKeySums + l * G::kDim + column));
#pragma unroll
    for (int i = 0; i < kShare; ++i) {
      float f_z = 0.f;
#pragma unroll
      for (int j = 0; j < kPiece; ++j) f_z += x[i][j] * z[j];
#pragma unroll
      for (int other = 1; other < W::kPieces; other *= 2) f_z += __shfl_xor_sync(~0u, f_z, other);
      if (column == 0) numbers[first + i * kRowsAtOnce] = f_z;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kShare; ++i)
      store_pairs(walk.own_tile(1) + row_of_share(i), high, x[i], power_of_2(shift[0]));
  }
  walk.place.meet_slices();
  if constexpr (kSweep == Sweep::kForward) {
    shift[0] = __float_as_int(numbers[G::kChunk + row_of(0)]);
    shift[1] = __float_as_int(numbers[G::kChunk + row_of(2)]);
  }
}
/// Calls body(element of rows, x, exp(-|x|)) for every number of a warp's rows and slice, with x of
/// its own rows of q or k.
template <typename G, Sweep kSweep, typename Body>
__device__ __forceinline__ void each_own_number(const Walk<G, kSweep>& walk, const Body& body) {
  const int at = walk.own_tile(0) + row_of(0) * G::kRow + walk.place.slice * kSlice + lane_id() % 4;
  const int high = high_parts(walk.place.slice * kSlice);
  const float scale = power_of_2(-walk.shift(kOwnRows));
#pragma unroll
  for (int i = 0; i < 4 * kSliceBlocks; ++i) {
    const int n = i / 2, r = i % 2;  // eight columns, eight rows
    const int eight = at + r * 8 * G::kRow + n * kEight;
    const float2 x = joined(__float_as_uint(*shared_at(eight + high)),
                            __float_as_uint(*shared_at(eight + (high ^ kLastParts))));
    body(n, 2 * r, x.x * scale, decay_of(x.x * scale));
    body(n, 2 * r + 1, x.y * scale, decay_of(x.y * scale));
  }
}
/// sum += gradient with respect to the features, times their slope.
template <typename G, Sweep kSweep>
__device__ __forceinline__ void add_input_gradient(Block (&sum)[kSliceBlocks],
                                                   const Block (&gradient)[kSliceBlocks],
                                                   FeatureMap map, const Walk<G, kSweep>& walk) {
  with_paper_map<G>(map, [&](auto feature, auto slope) {
    each_own_number(walk, [&](int n, int i, float x, float e) {
      sum[n / 2][n % 2][i] += gradient[n / 2][n % 2][i] * slope(feature(x, e));
    });
  });
}

/// Writes the warp's rows and channels of out, dq, dk or dv, as far as the head has them; zeros for
/// dead rows. A lane's numbers and its neighbours' are whole sectors.
template <typename G, Sweep kSweep>
__device__ __forceinline__ void write_rows(const Walk<G, kSweep>& walk, const View& view,
                                           const Block (&rows)[kSliceBlocks]) {
  const SweepArgs& args = walk.args;
  const Place<G>& place = walk.place;
  const uint32_t live = walk.live_bits(place.tile);
  const int column = place.slice * kSlice + column_of(0, 0);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int token = walk.token(place.tile) + row_of(2 * r);
    if (token >= args.length) continue;
    const bool alive = live >> row_of(2 * r) & 1;
    float* to = rows_of(view, place) + token * view.row_stride + column;
#pragma unroll
    for (int n = 0; n < 2 * kSliceBlocks; ++n) {
      const float(&c)[4] = rows[n / 2][n % 2];
      if (!has_channel<G>(args.head_dim, column + n * 8)) continue;
      *reinterpret_cast<float2*>(to + n * 8) =
          alive ? make_float2(c[2 * r], c[2 * r + 1]) : make_float2(0.f, 0.f);
    }
  }
}

}  // namespace fmmformer::cuda::chunks_fp32
