// SPDX-License-Identifier: Apache-2.0
// Feature rows f(x) of sixteen queries or keys as fragments, in bf16 pairs where that loses
// nothing.
#pragma once

#include "attention/fmm/cuda/features.cuh"
#include "attention/fmm/cuda/roles/step.cuh"

namespace fmmformer::cuda::roles {

/// f of two numbers. elu(x) + 1 = max(x + 1, exp(-|x|)): of the two, the right one is the larger on
/// either side of 0, and rounding before the maximum is rounding after it.
template <FeatureMap kMap>
__device__ __forceinline__ uint32_t feature_pair(uint32_t x) {
  float low, high;
  Bf16::unpack(x, low, high);
  if constexpr (kMap == FeatureMap::kElu || kMap == FeatureMap::kEluFlip) {
    const Pair one = __float2bfloat162_rn(1.f);
    const Pair decay =
        as_pair(Bf16::pack(Bf16::exp2(-kLog2E * fabsf(low)), Bf16::exp2(-kLog2E * fabsf(high))));
    const Pair line =
        kMap == FeatureMap::kElu ? __hadd2(as_pair(x), one) : __hsub2(one, as_pair(x));
    return as_bits(__hmax2_nan(line, decay));
  } else if constexpr (kMap == FeatureMap::kTanh1) {  // 2 / (1 + exp(-2x))
    return Bf16::pack(__fdividef(2.f, 1.f + Bf16::exp2(-2.f * kLog2E * low)),
                      __fdividef(2.f, 1.f + Bf16::exp2(-2.f * kLog2E * high)));
  } else if constexpr (kMap == FeatureMap::kIdentity) {
    return x;
  } else {
    return Bf16::pack(map_value<Bf16, kMap>(low), map_value<Bf16, kMap>(high));
  }
}

/// f'(x), from x and f(x).
template <FeatureMap kMap>
__device__ __forceinline__ float feature_slope(float x, float f) {
  if constexpr (kMap == FeatureMap::kElu) return fminf(f, 1.f);
  if constexpr (kMap == FeatureMap::kEluFlip) return -fminf(f, 1.f);
  return map_slope<Bf16, kMap>(x);
}

/// A role's part of sixteen feature rows. Tiles start at the part.
template <typename G>
struct FeatureRows {
  Fragment f[G::kPartBlocks];
  float inverse_sum[2];  // of unit features: 1 / sum_d phi of rows g and g + 8 (0 for a sum of 0),
                         // else 1

  /// From a tile of raw q or k; `exchange`: where unit features meet their other parts.
  template <Side kSide = Side::kAny>
  __device__ __forceinline__ void make(const FarStep<G>& step, const Elem* tile,
                                       Exchange exchange) {
    with_map(step.map, [&](auto constant) {
#pragma unroll
      for (int s = 0; s < G::kPartBlocks; ++s) {
        const Fragment x = load<kSide>(tile + s * kBlockDim, G::kKeyStride);
#pragma unroll
        for (int i = 0; i < 4; ++i) f[s].r[i] = feature_pair<decltype(constant)::value>(x.r[i]);
      }
    });
    if (!G::kPlain && step.args.head_dim < G::kKeyDim) {
      clear_beyond(step.args.head_dim - step.role.part * G::kPartDim);
    }
    inverse_sum[0] = inverse_sum[1] = 1.f;
    if (step.args.unit_features) normalise(step, exchange);
  }

  /// <f, c> of both rows, over this part.
  __device__ __forceinline__ void dot(const Block (&c)[G::kPartBlocks], float (&result)[2]) const {
    result[0] = result[1] = 0.f;
    each([&](int s, int n, int i, float low, float high) {
      result[i / 2] += low * c[s][n][i] + high * c[s][n][i + 1];
    });
    result[0] = quad_sum(result[0]), result[1] = quad_sum(result[1]);
  }

  /// Turns the gradient with respect to f into that with respect to x.
  __device__ __forceinline__ void to_input(Block (&gradient)[G::kPartBlocks],
                                           const FarStep<G>& step, const Elem* tile) const {
    const bool unit = step.args.unit_features;
    if (unit) {  // f = phi / s: dphi = (df - <df, f>) / s
      float along[2];
      dot(gradient, along);
      step.add_parts_and_slices(along, Exchange::kAlong);
      each([&](int s, int n, int i, float, float) {
        gradient[s][n][i] = (gradient[s][n][i] - along[i / 2]) * inverse_sum[i / 2];
        gradient[s][n][i + 1] = (gradient[s][n][i + 1] - along[i / 2]) * inverse_sum[i / 2];
      });
    }
    with_map(step.map, [&](auto constant) {
      constexpr FeatureMap kMap = decltype(constant)::value;
      // Slopes from f are those of phi itself.
      constexpr bool kFromFeature = kMap == FeatureMap::kElu || kMap == FeatureMap::kEluFlip;
      float phi[2] = {1.f, 1.f};
      if (kFromFeature && unit) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          phi[r] = inverse_sum[r] == 0.f ? 0.f : __fdividef(1.f, inverse_sum[r]);
        }
      }
#pragma unroll
      for (int s = 0; s < G::kPartBlocks; ++s) {
        const Fragment x = load(tile + s * kBlockDim, G::kKeyStride);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int n = j / 2, i = j % 2 * 2;
          float x_low, x_high, low, high;
          Bf16::unpack(x.r[j], x_low, x_high), Bf16::unpack(f[s].r[j], low, high);
          if (kFromFeature && unit) low *= phi[j % 2], high *= phi[j % 2];
          gradient[s][n][i] *= feature_slope<kMap>(x_low, low);
          gradient[s][n][i + 1] *= feature_slope<kMap>(x_high, high);
        }
      }
    });
  }

 private:
  /// body(s, n, i, f, f of the column after) for every pair: element i of half n of block s.
  template <typename Body>
  __device__ __forceinline__ void each(const Body& body) const {
#pragma unroll
    for (int s = 0; s < G::kPartBlocks; ++s) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        float low, high;
        Bf16::unpack(f[s].r[j], low, high);
        body(s, j / 2, j % 2 * 2, low, high);
      }
    }
  }
  __device__ void clear_beyond(int channels) {
#pragma unroll
    for (int s = 0; s < G::kPartBlocks; ++s) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int channel = s * kBlockDim + column_of(j / 2, 0);
        if (channel + 1 >= channels) f[s].r[j] &= 0xffffu;
        if (channel >= channels) f[s].r[j] = 0;
      }
    }
  }
  __device__ void normalise(const FarStep<G>& step, Exchange exchange) {
    float sum[2] = {0.f, 0.f};
    each([&](int, int, int i, float low, float high) { sum[i / 2] += low + high; });
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] = quad_sum(sum[r]);
    step.add_parts(sum, exchange);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      inverse_sum[r] = sum[r] == 0.f ? 0.f : __fdividef(1.f, sum[r]);
    }
#pragma unroll
    for (int s = 0; s < G::kPartBlocks; ++s) f[s] = scaled_rows(f[s], inverse_sum);
  }
};

}  // namespace fmmformer::cuda::roles
