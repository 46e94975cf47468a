// SPDX-License-Identifier: Apache-2.0
// Feature rows of a chunk in shared memory, a warp's own rows as operands, and results on their way
// to memory.
#pragma once

#include "attention/fmm/cuda/chunks_fp32/walk.cuh"
#include "attention/fmm/cuda/features.cuh"
#include "attention/fmm/cuda/paper_maps.cuh"

namespace fmmformer::cuda::chunks_fp32 {

__device__ __forceinline__ float decay_of(float x) { return Bf16::exp(-fabsf(x)); }  // in fp32
template <FeatureMap kMap>
__device__ __forceinline__ float feature_of(float x, float decay) {
  return scalar::feature_value(DeviceOps(), kMap, x, decay);
}
template <FeatureMap kMap>
__device__ __forceinline__ float slope_of(float x, float decay) {
  return scalar::feature_slope(DeviceOps(), kMap, x, decay);
}

__device__ __forceinline__ bool has_row_sums(const SweepArgs& args) {
  return args.normaliser == Normaliser::kRowSum;
}

/// A head's blend weights, the near field's last.
template <typename G>
struct Weights {
  float of[G::kFields];

  __device__ Weights(const SweepArgs& args, int head) {
#pragma unroll
    for (int l = 0; l < G::kMaps; ++l)
      of[l] = weight_value(args.far_weight, args.first_map + l, head, 0);
    of[G::kMaps] = weight_value(args.near_weight, 0, head, 0);
  }
};

/// Feature rows of the chunk's keys, or of its queries times weight * far_scale / norm, from raw
/// rows; zeros for dead tokens, since features of 0 are not 0.
template <typename G, Sweep kSweep>
__device__ __forceinline__ void make_features(const Walk<G, kSweep>& walk,
                                              const Weights<G>& weights) {
  using M = Memory<G, kSweep>;
  const SweepArgs& args = walk.args;
  constexpr int kPieces = G::kDim / kPiece, kRowsAtOnce = kThreads / kPieces;
  const int first_row = threadIdx.x / kPieces, column = threadIdx.x % kPieces * kPiece;
#pragma unroll
  for (int i = 0; i < G::kChunk; i += kRowsAtOnce) {
    const int tile = i / kBlockDim, row = first_row + i % kBlockDim;
    const bool live = walk.live >> (first_row + i) & 1;
    const float4 raw =
        *reinterpret_cast<float4*>(shared_at(walk.tile(0, tile) + row * G::kRow + column));
    const float x[kPiece] = {raw.x, raw.y, raw.z, raw.w};
    float decay[kPiece];
#pragma unroll
    for (int j = 0; j < kPiece; ++j) decay[j] = decay_of(x[j]);
    each_map<G>([&](auto map) {
      constexpr int l = decltype(map)::value;
      float factor = 1.f;
      if constexpr (M::kOfQueries) {
        const float norm =
            has_row_sums(args) ? walk.numbers(kNorm<G> + l, tile)[row] : args.fixed_norm;
        factor = __fdividef(weights.of[l] * args.far_scale, norm);
      }
      float f[kPiece];
#pragma unroll
      for (int j = 0; j < kPiece; ++j) {
        const float feature = feature_of<kMapOf<G, l>>(x[j], decay[j]);
        f[j] = live ? (M::kOfQueries ? factor * feature : feature) : 0.f;
      }
      *reinterpret_cast<float4*>(shared_at(walk.feature_tile(l, tile) + row * G::kRow + column)) =
          make_float4(f[0], f[1], f[2], f[3]);
    });
  }
}

/// Features of a warp's own rows of q or k, plain, for all channels.
template <typename G>
using FeatureRows = Values[G::kBlocks];
template <typename G, int l, Sweep kSweep>
__device__ __forceinline__ void own_features(FeatureRows<G>& f, const Walk<G, kSweep>& walk,
                                             const Loader<G>& load) {
#pragma unroll
  for (int b = 0; b < G::kBlocks; ++b) {
    load.plain_values(f[b], walk.own_tile(0), b);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float& x = f[b][i / 4][i % 4];
      x = feature_of<kMapOf<G, l>>(x, decay_of(x));
    }
  }
}
/// Calls body(element of rows, x) for every number of a warp's rows and slice, with x of its own
/// rows of q or k.
template <typename G, Sweep kSweep, typename Body>
__device__ __forceinline__ void each_own_number(const Walk<G, kSweep>& walk, const Body& body) {
  const float* at = shared_at(walk.own_tile(0) + row_of(0) * G::kRow + walk.place.slice * kSlice +
                              column_of(0, 0));
#pragma unroll
  for (int i = 0; i < 4 * kSliceBlocks; ++i) {
    const int n = i / 2, r = i % 2;  // eight columns, eight rows
    const float2 x = *reinterpret_cast<const float2*>(at + r * 8 * G::kRow + n * 8);
    body(n, 2 * r, x.x), body(n, 2 * r + 1, x.y);
  }
}
/// sum += gradient with respect to the features, times their slope.
template <typename G, int l, Sweep kSweep>
__device__ __forceinline__ void add_input_gradient(Block (&sum)[kSliceBlocks],
                                                   const Block (&gradient)[kSliceBlocks],
                                                   const Walk<G, kSweep>& walk) {
  each_own_number(walk, [&](int n, int i, float x) {
    sum[n / 2][n % 2][i] += gradient[n / 2][n % 2][i] * slope_of<kMapOf<G, l>>(x, decay_of(x));
  });
}

/// body(r, token) for rows g and g + 8, in one lane each and one slice.
template <typename G, Sweep kSweep, typename Body>
__device__ __forceinline__ void each_row_once(const Walk<G, kSweep>& walk, const Body& body) {
  if (walk.place.slice != 0 || lane_id() % 4 != 0) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int token = walk.token(walk.place.tile) + row_of(2 * r);
    if (token < walk.args.length) body(r, token);
  }
}

/// Numbers of rows g and g + 8, from one of [pairs, fields, length].
template <typename G, Sweep kSweep>
__device__ __forceinline__ void load_numbers(float (&numbers)[2], const Walk<G, kSweep>& walk,
                                             const float* all, int fields, int field) {
  const float* mine = all + walk.place.row_index(walk.args, fields, field);
#pragma unroll
  for (int r = 0; r < 2; ++r)
    numbers[r] = mine[min(walk.token(walk.place.tile) + row_of(2 * r), walk.args.length - 1)];
}

/// Writes the warp's rows and channels of out, dq, dk or dv; zeros for dead rows. A lane's numbers
/// and its neighbours' are whole sectors. `partial`: the sums over the passes, of which only the
/// last one writes the tensor.
template <typename G, Sweep kSweep>
__device__ __forceinline__ void write_rows(const Walk<G, kSweep>& walk, const View& view,
                                           const Partial& partial,
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
    float* sums =
        partial.sums
            ? partial.sums +
                  ((int64_t(place.b) * args.length + token) * args.heads + place.h) * G::kDim +
                  column
            : nullptr;
    if (sums && !partial.last) to = sums;
#pragma unroll
    for (int n = 0; n < 2 * kSliceBlocks; ++n) {
      const float(&c)[4] = rows[n / 2][n % 2];
      float2 both = alive ? make_float2(c[2 * r], c[2 * r + 1]) : make_float2(0.f, 0.f);
      if (sums && !partial.first) {
        const float2 before = *reinterpret_cast<const float2*>(sums + n * 8);
        both.x += before.x, both.y += before.y;
      }
      *reinterpret_cast<float2*>(to + n * 8) = both;
    }
  }
}

}  // namespace fmmformer::cuda::chunks_fp32
