// SPDX-License-Identifier: Apache-2.0
// Where a thread block stands, and rows of tensors to tiles in shared memory and back. All tiles
// are fp32, [rows][stride] with kPad columns of padding; beyond D, Dv and the sequence they hold 0.
#pragma once

#include "attention/fast_weight/cuda/sweep.h"
#include "attention/fast_weight/cuda/tf32.cuh"
#include "attention/fmm/cuda/features.cuh"

namespace fmmformer::cuda::fast_weight {

inline constexpr int kPad = 4;  // a fragment that is read across rows then meets no bank twice
inline constexpr int kSquareStride = kChunk + kPad;  // of a tile with sixteen columns
inline constexpr int kPiece = 8;                     // neighbouring channels that a lane takes

__host__ __device__ constexpr int by_sixteen(int n) { return (n + 15) / 16 * 16; }
__host__ __device__ constexpr int stride_of(int dim) { return by_sixteen(dim) + kPad; }
__host__ __device__ inline int chunks_of(const SweepArgs& args) {
  return (args.length + kChunk - 1) / kChunk;
}

/// A thread block's segment; `block` counts pairs and, faster, segments.
struct Place {
  int64_t pair;
  int b, h, segment, begin, end;  // in chunks
  int warp = threadIdx.x / kWarpSize;

  __device__ Place(const SweepArgs& args, int64_t block) {
    pair = block / args.segments, segment = static_cast<int>(block % args.segments);
    b = static_cast<int>(pair / args.heads), h = static_cast<int>(pair % args.heads);
    begin = segment * args.segment_chunks;
    end = min(begin + args.segment_chunks, chunks_of(args));
  }
  __device__ bool live(const SweepArgs& args, int token) const {
    return token < args.length &&
           (!args.token_mask || args.token_mask[int64_t(b) * args.length + token]);
  }
  __device__ int64_t element(const View& view, int token) const {
    return b * view.batch_stride + h * view.head_stride + token * view.row_stride;
  }
  __device__ int64_t chunk_index(const SweepArgs& args, int chunk) const {
    return pair * chunks_of(args) + chunk;
  }
  __device__ float* row_field(const SweepArgs& args, RowField field, int chunk) const {
    return args.rows + ((pair * kRowFields + field) * chunks_of(args) + chunk) * kChunk;
  }
};

__device__ __forceinline__ float beta_of(const SweepArgs& args, const Place& place, int token) {
  return weight_value(args.beta, place.b, place.h, token);
}

/// body(row, channel, across) for every row of a chunk in pieces of kPiece channels, a lane each; a
/// row's pieces lie in `across` neighbouring lanes, of which the last may be beyond
/// by_sixteen(dim).
template <typename Body>
__device__ __forceinline__ void each_piece(int dim, const Body& body) {
  int shift = 1;
  while (kPiece << shift < dim) ++shift;
  const int across = 1 << shift;
#pragma unroll 1
  for (int index = lane_id(); index < kChunk << shift; index += kWarpSize)
    body(index >> shift, (index & (across - 1)) * kPiece, across);
}
__device__ __forceinline__ float sum_across(float x, int across) {
  for (int other = 1; other < across; other *= 2) x += __shfl_xor_sync(~0u, x, other);
  return x;
}

/// kPiece channels from `channel` on of a row; zeros beyond `dim` and for rows that are not live.
__device__ __forceinline__ void load_piece(float (&x)[kPiece], const View& view, int64_t row,
                                           int channel, int dim, Element element, bool live) {
#pragma unroll
  for (int i = 0; i < kPiece; ++i) x[i] = 0.f;
  if (!live || channel >= dim) return;
  if (view.aligned && channel + kPiece <= dim && element != Element::kFloat16) {
    if (element == Element::kBFloat16) {
      Bf16::load_row(x, static_cast<const __nv_bfloat16*>(view.data) + row + channel);
    } else {
      Tf32x3::load_row(x, static_cast<const float*>(view.data) + row + channel);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kPiece; ++i) {
    if (channel + i < dim) x[i] = element_value(view.data, row + channel + i, element);
  }
}
__device__ __forceinline__ void store_piece(const float (&x)[kPiece], const View& view, int64_t row,
                                            int channel, int dim, Element element) {
  if (view.aligned && channel + kPiece <= dim && element != Element::kFloat16) {
    if (element == Element::kBFloat16) {
      Bf16::store_row(static_cast<__nv_bfloat16*>(view.data) + row + channel, x);
    } else {
      Tf32x3::store_row(static_cast<float*>(view.data) + row + channel, x);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kPiece; ++i) {
    if (channel + i < dim) store_element(view.data, row + channel + i, element, x[i]);
  }
}

/// The chunk's rows of a tensor, times factors[row] where there are any.
template <typename Math>
__device__ __forceinline__ void load_tile(float* tile, int stride, const View& view, int dim,
                                          const SweepArgs& args, const Place& place, int chunk,
                                          const float* factors) {
  each_piece(dim, [&](int row, int channel, int) {
    if (channel >= by_sixteen(dim)) return;
    const int token = chunk * kChunk + row;
    float x[kPiece];
    load_piece(x, view, place.element(view, token), channel, dim, args.element,
               place.live(args, token));
    if (factors) {
#pragma unroll
      for (int i = 0; i < kPiece; ++i) x[i] = Math::rounded(x[i] * factors[row]);
    }
    Tf32x3::store_row(tile + row * stride + channel, x);
  });
}

/// A row's piece of phi(x), the sum over the row (for unit features, else 1) and its inverse.
template <typename Math>
struct FeaturePiece {
  float x[kPiece], f[kPiece];
  float inverse_sum = 1.f;

  __device__ __forceinline__ FeaturePiece(const View& view, const SweepArgs& args,
                                          const Place& place, int token, int channel, int across,
                                          bool live) {
    load_piece(x, view, live ? place.element(view, token) : 0, channel, args.head_dim, args.element,
               live);
    with_map(args.feature_map, [&](auto constant) {
#pragma unroll
      for (int i = 0; i < kPiece; ++i) f[i] = map_value<Math, decltype(constant)::value>(x[i]);
    });
#pragma unroll
    for (int i = 0; i < kPiece; ++i) {
      if (!live || channel + i >= args.head_dim) f[i] = 0.f;
    }
    if (!args.unit_features) return;
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < kPiece; ++i) sum += f[i];
    sum = sum_across(sum, across);
    inverse_sum = sum == 0.f ? 0.f : 1.f / sum;
#pragma unroll
    for (int i = 0; i < kPiece; ++i) f[i] *= inverse_sum;
  }
};

/// The chunk's feature rows of q or k.
template <typename Math>
__device__ __forceinline__ void make_features(float* tile, int stride, const View& view,
                                              const SweepArgs& args, const Place& place,
                                              int chunk) {
  each_piece(args.head_dim, [&](int row, int channel, int across) {
    const int token = chunk * kChunk + row;
    const bool live = place.live(args, token);
    FeaturePiece<Math> piece(view, args, place, token, channel, across, live);
    if (channel >= by_sixteen(args.head_dim)) return;
#pragma unroll
    for (int i = 0; i < kPiece; ++i) piece.f[i] = Math::rounded(piece.f[i]);
    Tf32x3::store_row(tile + row * stride + channel, piece.f);
  });
}

/// From the gradient of a chunk's feature rows, piece by piece, to that of q or k: writes it.
/// gradient(row, channel, x): a piece of the former. `tile`: the features.
template <typename Math, typename Gradient>
__device__ __forceinline__ void store_input_gradient(const View& to, const View& from,
                                                     const SweepArgs& args, const Place& place,
                                                     int chunk, const Gradient& gradient) {
  each_piece(args.head_dim, [&](int row, int channel, int across) {
    const int token = chunk * kChunk + row;
    const bool live = place.live(args, token);
    const FeaturePiece<Math> piece(from, args, place, token, channel, across, live);
    float df[kPiece] = {};
    if (live && channel < by_sixteen(args.head_dim)) gradient(row, channel, df);
    if (args.unit_features) {  // f = phi / s: dphi = (df - <df, f>) / s
      float along = 0.f;
#pragma unroll
      for (int i = 0; i < kPiece; ++i) along += df[i] * piece.f[i];
      along = sum_across(along, across);
#pragma unroll
      for (int i = 0; i < kPiece; ++i) df[i] = (df[i] - along) * piece.inverse_sum;
    }
    if (token >= args.length) return;
    with_map(args.feature_map, [&](auto constant) {
#pragma unroll
      for (int i = 0; i < kPiece; ++i)
        df[i] = live ? df[i] * map_slope<Math, decltype(constant)::value>(piece.x[i]) : 0.f;
    });
    store_piece(df, to, place.element(to, token), channel, args.head_dim, args.element);
  });
}

/// What a sum of keys becomes as a divisor.
__device__ __forceinline__ float divisor_of(const SweepArgs& args, float sum) {
  if (!is_signed(args.feature_map)) return sum + args.eps;
  return fabsf(sum) > args.eps ? sum : copysignf(args.eps, sum);
}
/// d divisor / d sum: none through the guard of a signed map.
__device__ __forceinline__ float divisor_slope(const SweepArgs& args, float divisor) {
  return !is_signed(args.feature_map) || fabsf(divisor) > args.eps ? 1.f : 0.f;
}

}  // namespace fmmformer::cuda::fast_weight
