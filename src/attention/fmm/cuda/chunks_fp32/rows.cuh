// SPDX-License-Identifier: Apache-2.0
// Feature rows of a chunk in shared memory, a warp's own rows as operands, and results on their way
// to memory.
#pragma once

#include "attention/fmm/cuda/chunk_rows.cuh"
#include "attention/fmm/cuda/chunks_fp32/walk.cuh"
#include "attention/fmm/cuda/features.cuh"

namespace fmmformer::cuda::chunks_fp32 {

__device__ __forceinline__ float decay_of(float x) { return Bf16::exp(-fabsf(x)); }  // in fp32

/// Calls body(f, f') with functions of x and exp(-|x|), where f is one of the paper's maps: two
/// pieces of code for all three, since elu_flip is elu of -x.
template <typename Body>
__device__ __forceinline__ void with_paper_map(FeatureMap map, const Body& body) {
  if (map == FeatureMap::kTanh1) {
    body([](float x,
            float e) { return scalar::feature_value(DeviceOps(), FeatureMap::kTanh1, x, e); },
         [](float x, float e) {
           return scalar::feature_slope(DeviceOps(), FeatureMap::kTanh1, x, e);
         });
  } else {
    const float sign = map == FeatureMap::kElu ? 1.f : -1.f;
    body([sign](float x, float e) { return sign * x > 0.f ? fmaf(sign, x, 1.f) : e; },
         [sign](float x, float e) { return sign * (sign * x > 0.f ? 1.f : e); });
  }
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

/// One of a few numbers in registers.
template <int kCount>
__device__ __forceinline__ float pick(const float (&numbers)[kCount], int index) {
  float result = numbers[0];
#pragma unroll
  for (int i = 1; i < kCount; ++i) result = i == index ? numbers[i] : result;
  return result;
}

/// Feature rows of the chunk's keys, or of its queries times weight * far_scale / norm, from raw
/// rows; zeros for dead tokens, since features of 0 are not 0.
template <typename G, Sweep kSweep>
__device__ __forceinline__ void make_features(const Walk<G, kSweep>& walk,
                                              const Weights<G>& weights) {
  using M = Memory<G, kSweep>;
  const SweepArgs& args = walk.args;
  constexpr int kPieces = G::kDim / kPiece, kRowsAtOnce = kThreads / kPieces,
                kTimes = G::kChunk / kRowsAtOnce;
  const int first_row = threadIdx.x / kPieces, column = threadIdx.x % kPieces * kPiece;
  const auto row_of_time = [&](int i) { return first_row + i * kRowsAtOnce % kBlockDim; };
  const auto tile_of_time = [](int i) { return i * kRowsAtOnce / kBlockDim; };
  float x[kTimes][kPiece], decay[kTimes][kPiece];
#pragma unroll
  for (int i = 0; i < kTimes; ++i) {
    const float4 raw = *reinterpret_cast<float4*>(
        shared_at(walk.tile(0, tile_of_time(i)) + row_of_time(i) * G::kRow + column));
    x[i][0] = raw.x, x[i][1] = raw.y, x[i][2] = raw.z, x[i][3] = raw.w;
#pragma unroll
    for (int j = 0; j < kPiece; ++j) decay[i][j] = decay_of(x[i][j]);
  }
#pragma unroll 1
  for (int l = 0; l < G::kMaps; ++l) {
    float factor[kTimes];
#pragma unroll
    for (int i = 0; i < kTimes; ++i) {
      const bool live = walk.live >> (first_row + i * kRowsAtOnce) & 1;
      factor[i] = live ? 1.f : 0.f;
      if constexpr (M::kOfQueries) {
        const float norm = has_row_sums(args)
                               ? walk.numbers(kNorm + l, tile_of_time(i))[row_of_time(i)]
                               : args.fixed_norm;
        // A dead row's norm may be 0.
        if (live) factor[i] = __fdividef(pick(weights.of, l) * args.far_scale, norm);
      }
    }
    with_paper_map(args.feature_maps[l], [&](auto feature, auto) {
#pragma unroll
      for (int i = 0; i < kTimes; ++i) {
        float f[kPiece];
#pragma unroll
        for (int j = 0; j < kPiece; ++j) f[j] = factor[i] * feature(x[i][j], decay[i][j]);
        *reinterpret_cast<float4*>(
            shared_at(walk.feature_tile(l, tile_of_time(i)) + row_of_time(i) * G::kRow + column)) =
            make_float4(f[0], f[1], f[2], f[3]);
      }
    });
  }
}

/// Features of a block of sixteen channels of a warp's own rows of q or k, plain.
template <typename G, Sweep kSweep>
__device__ __forceinline__ void own_features(Values& f, FeatureMap map, int s,
                                             const Walk<G, kSweep>& walk, const Loader<G>& load) {
  load.plain_values(f, walk.own_tile(0), s);
  with_paper_map(map, [&](auto feature, auto) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      f[i / 4][i % 4] = feature(f[i / 4][i % 4], decay_of(f[i / 4][i % 4]));
  });
}
/// Calls body(element of rows, x, exp(-|x|)) for every number of a warp's rows and slice, with x of
/// its own rows of q or k.
template <typename G, Sweep kSweep, typename Body>
__device__ __forceinline__ void each_own_number(const Walk<G, kSweep>& walk, const Body& body) {
  const float* at = shared_at(walk.own_tile(0) + row_of(0) * G::kRow + walk.place.slice * kSlice +
                              column_of(0, 0));
#pragma unroll
  for (int i = 0; i < 4 * kSliceBlocks; ++i) {
    const int n = i / 2, r = i % 2;  // eight columns, eight rows
    const float2 x = *reinterpret_cast<const float2*>(at + r * 8 * G::kRow + n * 8);
    body(n, 2 * r, x.x, decay_of(x.x)), body(n, 2 * r + 1, x.y, decay_of(x.y));
  }
}
/// sum += gradient with respect to the features, times their slope.
template <typename G, Sweep kSweep>
__device__ __forceinline__ void add_input_gradient(Block (&sum)[kSliceBlocks],
                                                   const Block (&gradient)[kSliceBlocks],
                                                   FeatureMap map, const Walk<G, kSweep>& walk) {
  with_paper_map(map, [&](auto, auto slope) {
    each_own_number(walk, [&](int n, int i, float x, float e) {
      sum[n / 2][n % 2][i] += gradient[n / 2][n % 2][i] * slope(x, e);
    });
  });
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
