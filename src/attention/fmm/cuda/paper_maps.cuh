// SPDX-License-Identifier: Apache-2.0
// The paper's feature maps on pairs of bf16 numbers, all of them from one exponential.
//
//   elu(x) + 1 = max(1 + x, e)     elu(-x) + 1 = max(1 - x, e)     e = exp(-|x|)
//   tanh(x) + 1 = 1 + t            t = tanh(x)
//
// Of the two arguments of max the right one is the larger on either side of 0, and rounding before
// the maximum is rounding after it. e and t come from instructions on bf16 numbers; e's argument is
// rounded too, which costs less than rounding e itself: x is seldom far from 0 where e matters.
// Slopes: min(f, 1), -min(f, 1), 1 - t^2.
#pragma once

#include "attention/fmm/cuda/mma.cuh"

namespace fmmformer::cuda {

// GPUs before sm_90 lack the instructions for bf16 and round the same numbers themselves.
__device__ __forceinline__ uint32_t decay_of(uint32_t x) {  // exp(-|x|)
  const uint32_t power = as_bits(__hmul2(__habs2(as_pair(x)), both(-kLog2E)));
#if __CUDA_ARCH__ >= 900
  uint32_t result;
  asm("ex2.approx.ftz.bf16x2 %0, %1;" : "=r"(result) : "r"(power));
  return result;
#else
  float low, high;
  Bf16::unpack(power, low, high);
  return Bf16::pack(Bf16::exp2(low), Bf16::exp2(high));
#endif
}
__device__ __forceinline__ uint32_t tanh_of(uint32_t x) {
#if __CUDA_ARCH__ >= 900
  uint32_t result;
  asm("tanh.approx.bf16x2 %0, %1;" : "=r"(result) : "r"(x));
  return result;
#else
  float low, high;
  Bf16::unpack(x, low, high);
  asm("tanh.approx.f32 %0, %0;" : "+f"(low));
  asm("tanh.approx.f32 %0, %0;" : "+f"(high));
  return Bf16::pack(low, high);
#endif
}

/// f(x) of the paper's map number kMap; `decay`: exp(-|x|), unused by tanh1.
template <int kMap>
__device__ __forceinline__ uint32_t feature_pair(uint32_t x, uint32_t decay) {
  const Pair p = as_pair(x), e = as_pair(decay), one = both(1.f);
  if constexpr (kMap == 0) return as_bits(__hmax2_nan(__hadd2(p, one), e));
  if constexpr (kMap == 1) return as_bits(__hmax2_nan(__hsub2(one, p), e));
  return as_bits(__hadd2(as_pair(tanh_of(x)), one));
}
/// f'(x), as two numbers.
template <int kMap>
__device__ __forceinline__ void slope_pair(uint32_t x, uint32_t decay, float& low, float& high) {
  const Pair one = both(1.f);
  Pair slope;
  if constexpr (kMap == 2) {
    const Pair t = as_pair(tanh_of(x));
    slope = __hfma2(__hneg2(t), t, one);
  } else {
    slope = __hmin2_nan(as_pair(feature_pair<kMap>(x, decay)), one);
  }
  Bf16::unpack(as_bits(slope), low, high);
  if (kMap == 1) low = -low, high = -high;
}

/// Calls body(map as a constant) for every map.
template <int kMap>
struct MapIndex {
  static constexpr int value = kMap;
};
template <typename G, typename Body>
__device__ __forceinline__ void each_map(const Body& body) {
  body(MapIndex<0>());
  if constexpr (G::kMaps > 1) body(MapIndex<1>());
  if constexpr (G::kMaps > 2) body(MapIndex<2>());
}

}  // namespace fmmformer::cuda
