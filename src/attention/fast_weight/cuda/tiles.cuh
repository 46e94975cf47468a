// SPDX-License-Identifier: Apache-2.0
// Where a thread block stands, and rows of tensors to tiles in shared memory and back. All tiles
// are fp32, [rows][columns + kPad]; beyond D, Dv and the sequence they hold 0.
#pragma once

#include "attention/fast_weight/cuda/sweep.h"
#include "attention/fast_weight/cuda/tf32.cuh"
#include "attention/fmm/cuda/features.cuh"

namespace fmmformer::cuda::fast_weight {

inline constexpr int kPad = 4;  // a fragment that is read across rows then meets no bank twice
inline constexpr int kSquareStride = kChunk + kPad;  // of a tile with sixteen columns
inline constexpr int kPiece = 8;                     // neighbouring channels that a thread takes

/// What is known at compile time: room for kKeys channels of keys and kValues of values, kWarps
/// warps, and how many of them are a team: those that prepare a chunk together.
template <int kKeys_, int kValues_, int kTeam_, int kWarps_>
struct Shape {
  static constexpr int kKeys = kKeys_, kValues = kValues_, kTeam = kTeam_, kWarps = kWarps_;
  static constexpr int kGroup = kWarps / kTeam;  // chunks that are prepared at a time
  static constexpr int kKeyStride = kKeys + kPad, kValueStride = kValues + kPad;
  static constexpr int kThreads = kWarps * kWarpSize, kTeamThreads = kTeam * kWarpSize;
};

/// Whether a call is one of those that models make most: bf16, unit elu features, no mask, nothing
/// to pad. Kernels for these leave out everything else: half of their instructions.
template <typename S>
bool is_plain(const SweepArgs& args) {
  for (const View* view :
       {&args.q, &args.k, &args.v, &args.out, &args.grad_out, &args.dq, &args.dk, &args.dv}) {
    if (view->data && !view->aligned) return false;
  }
  return args.element == Element::kBFloat16 && args.feature_map == FeatureMap::kElu &&
         args.unit_features && args.all_live && args.head_dim == S::kKeys &&
         args.value_dim == S::kValues;
}
/// The arguments of such a call, as constants where they are.
template <typename S, bool kPlain>
__device__ __forceinline__ SweepArgs known_args(const SweepArgs& given) {
  SweepArgs args = given;
  if constexpr (kPlain) {
    args.element = Element::kBFloat16, args.feature_map = FeatureMap::kElu;
    args.unit_features = args.all_live = true, args.token_mask = nullptr;
    args.head_dim = S::kKeys, args.value_dim = S::kValues;
    args.q.aligned = args.k.aligned = args.v.aligned = args.out.aligned = true;
    args.grad_out.aligned = args.dq.aligned = args.dk.aligned = args.dv.aligned = true;
  }
  return args;
}

__host__ __device__ constexpr int by_sixteen(int n) { return (n + 15) / 16 * 16; }
__host__ __device__ inline int chunks_of(const SweepArgs& args) {
  return (args.length + kChunk - 1) / kChunk;
}

/// A thread's place in its team; team `index` has the group's chunk of that number.
template <typename S>
struct Team {
  int index = threadIdx.x / S::kTeamThreads, thread = threadIdx.x % S::kTeamThreads;
  int warp = thread / kWarpSize;

  __device__ void wait() const {
    if constexpr (S::kTeam == 1) {
      __syncwarp();
    } else if constexpr (S::kTeam == S::kWarps) {
      __syncthreads();
    } else {
      asm volatile("bar.sync %0, %1;\n" ::"r"(1 + index), "n"(S::kTeamThreads) : "memory");
    }
  }
};

/// A thread block's segment; `block` counts pairs and, faster, segments.
struct Place {
  int64_t pair;
  int b, h, segment, begin, end;  // in chunks

  __device__ Place(const SweepArgs& args, int64_t block) {
    pair = block / args.segments, segment = static_cast<int>(block % args.segments);
    b = static_cast<int>(pair / args.heads), h = static_cast<int>(pair % args.heads);
    begin = segment * args.segment_chunks;
    end = min(begin + args.segment_chunks, chunks_of(args));
  }
  __device__ bool live(const SweepArgs& args, int token) const {
    return args.all_live ||
           (token < args.length &&
            (!args.token_mask || args.token_mask[int64_t(b) * args.length + token]));
  }
  __device__ int64_t element(const View& view, int token) const {
    return b * view.batch_stride + h * view.head_stride + token * view.row_stride;
  }
  __device__ int64_t chunk_index(const SweepArgs& args, int chunk) const {
    return pair * chunks_of(args) + chunk;
  }
  __device__ float* row_field(const SweepArgs& args, RowField field, int chunk) const {
    const bool kept = field < kKeptFields;
    const int fields = kept ? kKeptFields : kRowFields - kKeptFields;
    const int64_t index = pair * fields + (kept ? field : field - kKeptFields);
    return (kept ? args.rows : args.row_gradients) + (index * chunks_of(args) + chunk) * kChunk;
  }
};

__device__ __forceinline__ float beta_of(const SweepArgs& args, const Place& place, int token) {
  return weight_value(args.beta, place.b, place.h, token);
}

/// body(row, channel) for every row of a chunk in pieces of kPiece channels, a thread of the team
/// each; a row's pieces lie in kAcross neighbouring lanes.
template <int kDim>
inline constexpr int kAcross = kDim / kPiece;
template <typename S, int kDim, typename Body>
__device__ __forceinline__ void each_piece(const Team<S>& team, const Body& body) {
  static_assert(kChunk * kAcross<kDim> % kWarpSize == 0 && kAcross<kDim> <= kWarpSize);
#pragma unroll 1
  for (int index = team.thread; index < kChunk * kAcross<kDim>; index += S::kTeamThreads)
    body(index / kAcross<kDim>, index % kAcross<kDim> * kPiece);
}
/// A sum over a row's pieces.
template <int kDim>
__device__ __forceinline__ float sum_across(float x) {
#pragma unroll
  for (int other = 1; other < kAcross<kDim>; other *= 2) x += __shfl_xor_sync(~0u, x, other);
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
#pragma unroll 1
  for (int i = 0; i < kPiece; ++i) {
    const float value =
        channel + i < dim ? element_value(view.data, row + channel + i, element) : 0.f;
#pragma unroll
    for (int j = 0; j < kPiece; ++j) x[j] = j == i ? value : x[j];  // registers know no index
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
#pragma unroll 1
  for (int i = 0; i < kPiece && channel + i < dim; ++i) {
    float value = x[0];
#pragma unroll
    for (int j = 1; j < kPiece; ++j) value = j == i ? x[j] : value;
    store_element(view.data, row + channel + i, element, value);
  }
}

/// The chunk's rows of a tensor, [16][kDim + kPad], times factors[row] where there are any: then
/// they are operands.
template <typename Math, typename S, int kDim>
__device__ __forceinline__ void load_tile(const Team<S>& team, float* tile, const View& view,
                                          int dim, const SweepArgs& args, const Place& place,
                                          int chunk, const float* factors) {
  each_piece<S, kDim>(team, [&](int row, int channel) {
    const int token = chunk * kChunk + row;
    float x[kPiece];
    load_piece(x, view, place.element(view, token), channel, dim, args.element,
               place.live(args, token));
    if (factors) {
      const float factor = factors[row];
#pragma unroll
      for (int i = 0; i < kPiece; ++i) x[i] = Math::rounded(x[i] * factor);
    }
    Tf32x3::store_row(tile + row * (kDim + kPad) + channel, x);
  });
}

/// A row's piece of q or k, of its features, and the inverse of what unit features are divided by.
template <typename Math, int kDim>
struct FeaturePiece {
  float x[kPiece], f[kPiece];
  float inverse_sum = 1.f;

  __device__ __forceinline__ FeaturePiece(const View& view, const SweepArgs& args,
                                          const Place& place, int token, int channel, bool live) {
    load_piece(x, view, place.element(view, token), channel, args.head_dim, args.element, live);
    with_map(args.feature_map, [&](auto constant) {
#pragma unroll
      for (int i = 0; i < kPiece; ++i) f[i] = map_value<Math, decltype(constant)::value>(x[i]);
    });
    if (!live || channel + kPiece > args.head_dim) {
#pragma unroll
      for (int i = 0; i < kPiece; ++i) {
        if (!live || channel + i >= args.head_dim) f[i] = 0.f;
      }
    }
    if (!args.unit_features) return;
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < kPiece; ++i) sum += f[i];
    sum = sum_across<kDim>(sum);
    inverse_sum = sum == 0.f ? 0.f : 1.f / sum;
#pragma unroll
    for (int i = 0; i < kPiece; ++i) f[i] *= inverse_sum;
  }
};

/// The chunk's feature rows of q or k, as operands. Returns the inverse sum of the thread's last
/// row.
template <typename Math, typename S>
__device__ __forceinline__ float make_features(const Team<S>& team, float* tile, const View& view,
                                               const SweepArgs& args, const Place& place,
                                               int chunk) {
  float inverse_sum = 1.f;
  each_piece<S, S::kKeys>(team, [&](int row, int channel) {
    const int token = chunk * kChunk + row;
    FeaturePiece<Math, S::kKeys> piece(view, args, place, token, channel, place.live(args, token));
#pragma unroll
    for (int i = 0; i < kPiece; ++i) piece.f[i] = Math::rounded(piece.f[i]);
    Tf32x3::store_row(tile + row * S::kKeyStride + channel, piece.f);
    inverse_sum = piece.inverse_sum;
  });
  return inverse_sum;
}

/// From the gradient of a chunk's feature rows, a tile, to that of q or k, which is written.
template <typename Math, typename S>
__device__ __forceinline__ void store_input_gradient(const Team<S>& team, const View& to,
                                                     const View& from, const float* gradient,
                                                     const SweepArgs& args, const Place& place,
                                                     int chunk) {
  each_piece<S, S::kKeys>(team, [&](int row, int channel) {
    const int token = chunk * kChunk + row;
    const bool live = place.live(args, token);
    const FeaturePiece<Math, S::kKeys> piece(from, args, place, token, channel, live);
    float df[kPiece] = {};  // beyond D the tile may hold anything
    if (channel < args.head_dim) Tf32x3::load_row(df, gradient + row * S::kKeyStride + channel);
    if (args.unit_features) {  // f = phi / s: dphi = (df - <df, f>) / s
      float along = 0.f;
#pragma unroll
      for (int i = 0; i < kPiece; ++i) along += df[i] * piece.f[i];
      along = sum_across<S::kKeys>(along);
#pragma unroll
      for (int i = 0; i < kPiece; ++i) df[i] = (df[i] - along) * piece.inverse_sum;
    }
    if (token >= args.length || channel >= args.head_dim) return;
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
