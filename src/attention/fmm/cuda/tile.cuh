// SPDX-License-Identifier: Apache-2.0
// Rows of the tensors to tiles in shared memory and back, and the coordinates of a thread block.
#pragma once

#include <cuda_fp16.h>

#include "attention/fmm/cuda/async_copy.cuh"
#include "attention/fmm/cuda/mma.cuh"
#include "attention/fmm/cuda/sweep.h"

namespace fmmformer::cuda {

/// What is known at compile time. D is padded to kKeyDim and Dv (or a block of it) to kValueDim;
/// the padding holds zeros.
template <typename Math_, int kKeyDim_, int kValueDim_, int kMaps_, int kWarps_>
struct Geometry {
  using Math = Math_;
  using Elem = typename Math::Elem;
  static constexpr int kKeyDim = kKeyDim_, kValueDim = kValueDim_, kMaps = kMaps_, kWarps = kWarps_;
  static constexpr int kThreads = kWarps * kWarpSize;
  static constexpr int kRows = kWarps * 16;  // tokens of a chunk
  static constexpr int kKeyStride = kKeyDim + Math::kPad, kValueStride = kValueDim + Math::kPad;
  static constexpr int kKeySteps = kKeyDim / 16,
                       kValueSteps = kValueDim / 16;  // of a product over channels
  static constexpr int kKeyTiles = kKeyDim / 8,
                       kValueTiles = kValueDim / 8;        // of a product's columns
  static constexpr int kFeatureTile = kRows * kKeyStride;  // of one map
  // How often loops over the key's channels are unrolled: wholly, so that what they index stays in
  // registers. A row of 256 channels in fp32 has none to stay in, whole or not, and takes ptxas
  // minutes.
  static constexpr int kUnrolled = kKeyDim > 128 && sizeof(Elem) == 4 ? 4 : kKeyTiles;
};

/// A warp's sixteen rows of q or k, or of v, as the C tiles of a product.
template <typename G>
using KeyRows = float[G::kKeyTiles][4];
template <typename G>
using ValueRows = float[G::kValueTiles][4];

template <int kTiles>
__device__ inline void clear(float (&c)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) c[n][i] = 0.f;
  }
}

/// Where a thread block, a warp and a lane stand.
template <typename G>
struct Place {
  int pair, b, h, segment, begin, end;
  int warp = threadIdx.x / kWarpSize, g = lane_id() / 4, t = lane_id() % 4;

  __device__ explicit Place(const SweepArgs& args) {
    pair = blockIdx.x / args.segments, segment = blockIdx.x % args.segments;
    b = pair / args.heads, h = pair % args.heads;
    begin = segment_begin(args, segment), end = segment_begin(args, segment + 1);
  }
  __device__ int last_chunk() const { return begin + (end - begin - 1) / G::kRows * G::kRows; }
  /// The chunk's row of C element `i`, counted from the chunk's first.
  __device__ int row(int i) const { return warp * 16 + g + i / 2 * 8; }
  /// The channel of C element `i` of column tile n.
  __device__ int column(int n, int i) const { return n * 8 + 2 * t + i % 2; }
  __device__ bool live(const SweepArgs& args, int token) const {
    return token >= 0 && token < args.length &&
           (!args.token_mask || args.token_mask[int64_t(b) * args.length + token]);
  }
  /// Whether all of these tokens are surely live.
  __device__ bool all_live(const SweepArgs& args, int first, int rows) const {
    return !args.token_mask && first >= 0 && first + rows <= args.length;
  }
  /// Bit i: token first + i is live, for i below 16. The same in every lane.
  __device__ uint32_t live_bits(const SweepArgs& args, int first) const {
    if (all_live(args, first, 16)) return ~0u;
    return __ballot_sync(~0u, live(args, first + lane_id() % 16));
  }
  __device__ int64_t row_index(const SweepArgs& args, int token) const {
    return int64_t(pair) * args.length + token;
  }
  /// ... of one of `fields` numbers that every row has, [pairs, fields, length].
  __device__ int64_t row_index(const SweepArgs& args, int fields, int field, int token) const {
    return (int64_t(pair) * fields + field) * args.length + token;
  }
};

__device__ inline float element_value(const void* data, int64_t index, Element element) {
  switch (element) {
    case Element::kFloat32:
      return static_cast<const float*>(data)[index];
    case Element::kBFloat16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[index]);
    default:
      return __half2float(static_cast<const __half*>(data)[index]);
  }
}

/// Begins to load `rows` rows from token `first` on, by kThreads threads of which this one is
/// `thread`. Dead tokens and those beyond the sequence become zeros, whatever memory holds there.
/// Ends with wait_for_copies and a barrier.
template <typename G, int kDim, int kThreads>
__device__ __forceinline__ void load_rows(typename G::Elem* tile, const View& view, int dim,
                                          const SweepArgs& args, const Place<G>& place, int first,
                                          int rows, int thread) {
  using Elem = typename G::Elem;
  constexpr int kPiece = 16 / sizeof(Elem), kPieces = kDim / kPiece, kStride = kDim + G::Math::kPad;
  // Threads side by side on a row, and how often they go along it.
  constexpr int kAcross = kPieces < kThreads ? kPieces : kThreads, kTimes = kPieces / kAcross;
  constexpr int kRowsAtOnce = kThreads / kAcross;
  const int first_row = thread / kAcross, channel = thread % kAcross * kPiece;
  const int64_t origin = place.b * view.batch_stride + place.h * view.head_stride + channel;
  Elem* to = tile + first_row * kStride + channel;
  if (view.aligned && dim == kDim && sizeof(Elem) == (args.element == Element::kFloat32 ? 4 : 2)) {
    const bool plain = place.all_live(args, first, rows);
    const Elem* from =
        static_cast<const Elem*>(view.data) + origin + (first + first_row) * view.row_stride;
    const int64_t step = kRowsAtOnce * view.row_stride;
#pragma unroll 4
    for (int row = first_row; row < rows;
         row += kRowsAtOnce, from += step, to += kRowsAtOnce * kStride) {
      const bool live = plain || place.live(args, first + row);
#pragma unroll
      for (int i = 0; i < kTimes; ++i) {
        const Elem* piece = from + i * kAcross * kPiece;
        copy_async(to + i * kAcross * kPiece, live ? static_cast<const void*>(piece) : view.data,
                   live);
      }
    }
    return;
  }
  for (int row = first_row; row < rows; row += kRowsAtOnce, to += kRowsAtOnce * kStride) {
    const bool live = place.live(args, first + row);
    const int64_t index = origin + (first + row) * view.row_stride;
    for (int i = 0; i < kTimes; ++i) {
#pragma unroll
      for (int e = i * kAcross * kPiece; e < i * kAcross * kPiece + kPiece; ++e) {
        to[e] = live && channel + e < dim ? Elem(element_value(view.data, index + e, args.element))
                                          : Elem(0.f);
      }
    }
  }
}

__device__ inline void store_element(void* data, int64_t index, Element element, float value) {
  switch (element) {
    case Element::kFloat32:
      static_cast<float*>(data)[index] = value;
      break;
    case Element::kBFloat16:
      static_cast<__nv_bfloat16*>(data)[index] = __float2bfloat16(value);
      break;
    default:
      static_cast<__half*>(data)[index] = __float2half(value);
  }
}

/// Writes a warp's sixteen rows by way of `tile`, its own rows of a tile nobody needs any more.
/// Dead rows get zeros. `partial`: the sums over the passes, of which only the last one writes the
/// tensor.
template <typename G, int kTiles>
__device__ void store_rows(float (&rows)[kTiles][4], typename G::Elem* tile, const View& view,
                           int dim, const SweepArgs& args, const Place<G>& place, int chunk,
                           const Partial& partial) {
  using Math = typename G::Math;
  using Elem = typename G::Elem;
  constexpr int kDim = kTiles * 8, kPiece = 16 / sizeof(Elem), kPieces = kDim / kPiece,
                kStride = kDim + Math::kPad;
  if (partial.sums) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = chunk + place.row(i);
        const int channel = place.column(n, i);
        if (token >= args.length || channel >= dim) continue;
        float* at = partial.sums +
                    ((int64_t(place.b) * args.length + token) * args.heads + place.h) * dim +
                    channel;
        if (!partial.first) rows[n][i] += *at;
        if (!partial.last) *at = rows[n][i];
      }
    }
    if (!partial.last) return;
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      Math::store_pair(tile + (place.g + 8 * r) * kStride + place.column(n, 0), rows[n][2 * r],
                       rows[n][2 * r + 1]);
    }
  }
  __syncwarp();
  const int first = chunk + place.warp * 16;
  const bool plain = place.all_live(args, first, 16);
  const bool whole =
      view.aligned && dim == kDim && sizeof(Elem) == (args.element == Element::kFloat32 ? 4 : 2);
  const int64_t origin = place.b * view.batch_stride + place.h * view.head_stride;
#pragma unroll
  for (int piece = lane_id(); piece < 16 * kPieces; piece += kWarpSize) {
    const int row = piece / kPieces, at = piece % kPieces * kPiece;
    const int token = first + row;
    const int64_t index = origin + token * view.row_stride + at;
    if (!plain && token >= args.length) continue;
    const bool live = plain || place.live(args, token);
    const Elem* from = tile + row * kStride + at;
    if (whole) {
      const uint4 zeros = make_uint4(0, 0, 0, 0);
      *reinterpret_cast<uint4*>(static_cast<Elem*>(view.data) + index) =
          live ? *reinterpret_cast<const uint4*>(from) : zeros;
    } else {
      for (int i = 0; i < kPiece && at + i < dim; ++i) {
        store_element(view.data, index + i, args.element, live ? float(from[i]) : 0.f);
      }
    }
  }
  __syncwarp();
}

__device__ inline float weight_value(const Weight& weight, int map, int head, int channel) {
  if (!weight.data) return 1.f;
  const int64_t index =
      map * weight.map_stride + head * weight.head_stride + channel * weight.channel_stride;
  switch (weight.type) {
    case 0:
      return static_cast<const float*>(weight.data)[index];
    case 1:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(weight.data)[index]);
    case 2:
      return __half2float(static_cast<const __half*>(weight.data)[index]);
    default:
      return static_cast<float>(static_cast<const double*>(weight.data)[index]);
  }
}

/// Weights of this head into shared memory, [kMaps + 1][kValueDim]: the pass's far weights, then
/// the near one. Zeros beyond Dv. A barrier must follow.
template <typename G>
__device__ void load_weights(float* weights, const SweepArgs& args, const Place<G>& place) {
  for (int i = threadIdx.x; i < (G::kMaps + 1) * G::kValueDim; i += G::kThreads) {
    const int map = i / G::kValueDim, channel = i % G::kValueDim;
    float value = 0.f;
    if (channel < args.value_dim) {
      if (map == G::kMaps) {
        value = weight_value(args.near_weight, 0, place.h, channel);
      } else if (map < args.maps) {
        value = weight_value(args.far_weight, args.first_map + map, place.h, channel);
      }
    }
    weights[i] = value;
  }
}

/// A's values times a factor for every channel of the product's k, as an operand: rows scaled by a
/// weight.
template <typename G>
__device__ typename G::Math::A scaled_a(const typename G::Elem* tile, const float* factors,
                                        int step) {
  using Math = typename G::Math;
  float v[8];
  Math::values(Math::load_a(tile + step * 16, G::kValueStride), v);
  const float* at = factors + step * 16 + 2 * (lane_id() % 4);
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] *= at[i / 4 * 8 + i % 2];
  return Math::make_a(v);
}

__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}
__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

}  // namespace fmmformer::cuda
