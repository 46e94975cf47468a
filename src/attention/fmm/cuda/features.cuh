// SPDX-License-Identifier: Apache-2.0
// Feature rows f(x) of queries and keys: as tiles in shared memory, and as operands in a warp's
// registers.
#pragma once

#include "attention/feature_map.h"
#include "attention/fmm/cuda/tile.cuh"

namespace fmmformer::cuda {

/// The Ops of feature_map.inc with the GPU's fast division.
struct DeviceOps {
  __device__ float constant(double value) const { return static_cast<float>(value); }
  __device__ float add(float a, float b) const { return a + b; }
  __device__ float sub(float a, float b) const { return a - b; }
  __device__ float mul(float a, float b) const { return a * b; }
  __device__ float div(float a, float b) const { return __fdividef(a, b); }
  __device__ float max0(float x) const { return fmaxf(x, 0.f); }
  __device__ float select_positive(float x, float a, float b) const { return x > 0.f ? a : b; }
  __device__ float select_negative(float x, float a, float b) const { return x < 0.f ? a : b; }
  __device__ float log1p(float x) const { return log1pf(x); }
};

template <FeatureMap kMap>
struct MapConstant {
  static constexpr FeatureMap value = kMap;
};
/// Calls body(MapConstant) with the map known at compile time: one branch for many elements. What
/// does not differ by map stays outside, or the compiler has seven times as much to do.
template <typename Body>
__device__ __forceinline__ void with_map(FeatureMap map, const Body& body) {
  switch (map) {
    case FeatureMap::kElu:
      return body(MapConstant<FeatureMap::kElu>());
    case FeatureMap::kEluFlip:
      return body(MapConstant<FeatureMap::kEluFlip>());
    case FeatureMap::kTanh1:
      return body(MapConstant<FeatureMap::kTanh1>());
    case FeatureMap::kTanh:
      return body(MapConstant<FeatureMap::kTanh>());
    case FeatureMap::kRelu:
      return body(MapConstant<FeatureMap::kRelu>());
    case FeatureMap::kSoftplus:
      return body(MapConstant<FeatureMap::kSoftplus>());
    case FeatureMap::kIdentity:
      return body(MapConstant<FeatureMap::kIdentity>());
  }
}

template <typename Math, FeatureMap kMap>
__device__ __forceinline__ float map_value(float x) {
  const float e = needs_exp(kMap) ? Math::exp(-fabsf(x)) : 0.f;
  return scalar::feature_value(DeviceOps(), kMap, x, e);
}
template <typename Math, FeatureMap kMap>
__device__ __forceinline__ float map_slope(float x) {
  const float e = needs_exp(kMap) ? Math::exp(-fabsf(x)) : 0.f;
  return scalar::feature_slope(DeviceOps(), kMap, x, e);
}

/// A warp's sixteen feature rows as operands, with what their gradient needs.
template <typename G>
struct FeatureRows {
  typename G::Math::A a[G::kKeySteps];
  float inverse_sum[2];  // of unit features: 1 / sum_d phi of rows g and g + 8 (0 for a sum of 0),
                         // else 1

  /// From the warp's rows of a tile of raw q or k.
  __device__ __forceinline__ void make(const typename G::Elem* tile, FeatureMap map,
                                       const SweepArgs& args) {
    inverse_sum[0] = inverse_sum[1] = 1.f;
    if (args.unit_features) {
      float sum[2] = {0.f, 0.f};
      each_step</*kUnrolled=*/4>(tile, map, args, [&](int, const float(&f)[8]) {
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[i / 2 % 2] += f[i];
      });
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float total = quad_sum(sum[r]);
        inverse_sum[r] = total == 0.f ? 0.f : 1.f / total;
      }
    }
    each_step<G::kUnrolled>(tile, map, args, [&](int s, float(&f)[8]) {
      if (args.unit_features) {
#pragma unroll
        for (int i = 0; i < 8; ++i) f[i] *= inverse_sum[i / 2 % 2];
      }
      a[s] = G::Math::make_a(f);
    });
  }

  /// <f, c> of both rows, for c in the registers of a product.
  __device__ void dot(const KeyRows<G>& c, float (&result)[2]) const {
    result[0] = result[1] = 0.f;
#pragma unroll G::kUnrolled
    for (int s = 0; s < G::kKeySteps; ++s) {
      float v[8];
      G::Math::values(a[s], v);
#pragma unroll
      for (int i = 0; i < 8; ++i) result[i / 2 % 2] += v[i] * c[2 * s + i / 4][i % 4];
    }
    result[0] = quad_sum(result[0]), result[1] = quad_sum(result[1]);
  }

  /// Turns the gradient with respect to f into that with respect to x, and adds it to `sum`.
  __device__ void add_input_gradient(KeyRows<G>& gradient, const typename G::Elem* tile,
                                     FeatureMap map, const SweepArgs& args, KeyRows<G>& sum) const {
    if (args.unit_features) {  // f = phi / s: dphi = (df - <df, f>) / s
      float along[2];
      dot(gradient, along);
#pragma unroll G::kUnrolled
      for (int n = 0; n < G::kKeyTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          gradient[n][i] = (gradient[n][i] - along[i / 2]) * inverse_sum[i / 2];
      }
    }
#pragma unroll G::kUnrolled
    for (int s = 0; s < G::kKeySteps; ++s) {
      float slope[8];
      G::Math::values(G::Math::load_a(tile + s * 16, G::kKeyStride), slope);
      with_map(map, [&](auto constant) {
#pragma unroll
        for (int i = 0; i < 8; ++i)
          slope[i] = map_slope<typename G::Math, decltype(constant)::value>(slope[i]);
      });
#pragma unroll
      for (int i = 0; i < 8; ++i)
        sum[2 * s + i / 4][i % 4] += gradient[2 * s + i / 4][i % 4] * slope[i];
    }
  }

 private:
  /// body(step, phi of its sixteen channels), kUnrolled steps at a time; channels beyond D are 0.
  template <int kUnrolled, typename Body>
  __device__ __forceinline__ void each_step(const typename G::Elem* tile, FeatureMap map,
                                            const SweepArgs& args, const Body& body) {
    const int inside = args.head_dim - 2 * (lane_id() % 4);  // channels from this lane's first on
#pragma unroll kUnrolled
    for (int s = 0; s < G::kKeySteps; ++s) {
      float f[8];
      G::Math::values(G::Math::load_a(tile + s * 16, G::kKeyStride), f);
      with_map(map, [&](auto constant) {
#pragma unroll
        for (int i = 0; i < 8; ++i)
          f[i] = map_value<typename G::Math, decltype(constant)::value>(f[i]);
      });
      if (args.head_dim < G::kKeyDim) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if (s * 16 + i / 4 * 8 + i % 2 >= inside) f[i] = 0.f;
        }
      }
      body(s, f);
    }
  }
};

/// The chunk's feature rows into shared memory, [kMaps][kRows][kKeyStride], times factor(map, row)
/// where kScaled; rows that are not live and columns beyond D are zero. Barriers before and after
/// are the caller's.
template <typename G, bool kScaled, typename Factor>
__device__ void make_feature_tiles(typename G::Elem* features, const typename G::Elem* tile,
                                   const SweepArgs& args, const Place<G>& place, int chunk,
                                   const Factor& factor) {
  using Math = typename G::Math;
  constexpr int kPiece = 8, kPieces = G::kKeyDim / kPiece, kRowsAtOnce = G::kThreads / kPieces;
  const int channel = threadIdx.x % kPieces * kPiece;
  const bool plain = place.all_live(args, chunk, G::kRows);
#pragma unroll 1
  for (int row = threadIdx.x / kPieces; row < G::kRows; row += kRowsAtOnce) {
    const bool live = plain || place.live(args, chunk + row);
    float x[kPiece];
    Math::load_row(x, tile + row * G::kKeyStride + channel);
#pragma unroll 1
    for (int l = 0; l < args.maps; ++l) {
      float f[kPiece];
      with_map(args.feature_maps[l], [&](auto constant) {
#pragma unroll
        for (int i = 0; i < kPiece; ++i)
          f[i] = map_value<typename G::Math, decltype(constant)::value>(x[i]);
      });
      if (args.head_dim < G::kKeyDim) {
#pragma unroll
        for (int i = 0; i < kPiece; ++i) {
          if (channel + i >= args.head_dim) f[i] = 0.f;
        }
      }
      float scale = live ? 1.f : 0.f;
      if constexpr (kScaled) {
        if (live) scale = factor(l, row);
      }
      if (args.unit_features) {  // a row's pieces lie in neighbouring lanes
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < kPiece; ++i) sum += f[i];
#pragma unroll
        for (int other = 1; other < kPieces; other *= 2) sum += __shfl_xor_sync(~0u, sum, other);
        scale = sum == 0.f ? 0.f : scale / sum;
      }
      if (kScaled || !plain || args.unit_features) {
#pragma unroll
        for (int i = 0; i < kPiece; ++i) f[i] *= scale;
      }
      Math::store_row(features + l * G::kFeatureTile + row * G::kKeyStride + channel, f);
    }
  }
}

/// What a far field with this row sum is divided by.
__device__ inline float normaliser_of(const SweepArgs& args, FeatureMap map, float row_sum) {
  if (args.normaliser != Normaliser::kRowSum) return args.fixed_norm;
  if (!is_signed(map)) return row_sum + args.eps;
  return fabsf(row_sum) > args.eps ? row_sum : copysignf(args.eps, row_sum);
}
/// Whether a gradient flows through a normaliser of this value.
__device__ inline bool normaliser_varies(const SweepArgs& args, FeatureMap map, float norm) {
  return args.normaliser == Normaliser::kRowSum && (!is_signed(map) || fabsf(norm) > args.eps);
}

}  // namespace fmmformer::cuda
