// SPDX-License-Identifier: Apache-2.0
// Feature rows of sixteen queries or keys, all maps from one exponential, in pairs of bf16 numbers.
//
//   elu(x) + 1 = max(1 + x, e)     elu(-x) + 1 = max(1 - x, e)     e = exp(-|x|)
//   tanh(x) + 1 = 1 + t            t = tanh(x)
//
// Of the two arguments of max the right one is the larger on either side of 0, and rounding before
// the maximum is rounding after it. e and t come from instructions on bf16 numbers; e's argument is
// rounded too, which costs less than rounding e itself: x is seldom far from 0 where e matters.
// Slopes: min(f, 1), -min(f, 1), 1 - t^2. Unit features divide a row by its sum.
#pragma once

#include "attention/fmm/cuda/strips/shape.cuh"

namespace fmmformer::cuda::strips {

using Pair = __nv_bfloat162;
__device__ __forceinline__ Pair as_pair(uint32_t bits) { return *reinterpret_cast<Pair*>(&bits); }
__device__ __forceinline__ uint32_t as_bits(Pair pair) {
  return *reinterpret_cast<uint32_t*>(&pair);
}
__device__ __forceinline__ Pair both(float x) { return __float2bfloat162_rn(x); }

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

/// Sixteen rows of q or k, and what the maps make of them as operands. Of the rows only e is kept
/// in registers, which are scarce; x is loaded from its tile whenever it is needed.
template <typename G, Side kSide = Side::kAny>
struct Inputs {
  const Elem* tile;
  Fragment decay[G::kBlocks];

  __device__ __forceinline__ explicit Inputs(const Elem* tile) : tile(tile) {
    Fragment x[G::kBlocks];
    load<kSide>(x, tile, G::kStride);
#pragma unroll
    for (int s = 0; s < G::kBlocks; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) decay[s].r[i] = decay_of(x[s].r[i]);
    }
  }

  template <int kMap>
  __device__ __forceinline__ void features(Fragment (&f)[G::kBlocks]) const {
    load<kSide>(f, tile, G::kStride);
    if constexpr (!G::kUnit) {
      each([&](int s, int j) { f[s].r[j] = as_bits(phi<kMap>(f[s].r[j], decay[s].r[j])); });
    } else {
      Block wide[G::kBlocks];
      float sum[2] = {0.f, 0.f};
      each([&](int s, int j) {
        float* pair = wide[s][j / 2] + j % 2 * 2;
        wide_phi<kMap>(f[s].r[j], decay[s].r[j], pair[0], pair[1]);
        sum[j % 2] += pair[0] + pair[1];
      });
      invert_sums(sum);
      each([&](int s, int j) {
        const float* pair = wide[s][j / 2] + j % 2 * 2;
        f[s].r[j] = Bf16::pack(pair[0] * sum[j % 2], pair[1] * sum[j % 2]);
      });
    }
  }

  /// sum += gradient with respect to f, times f's slope.
  template <int kMap>
  __device__ __forceinline__ void add_input_gradient(Block (&sum)[G::kBlocks],
                                                     const Block (&gradient)[G::kBlocks]) const {
    Fragment x[G::kBlocks];
    load<kSide>(x, tile, G::kStride);
    // With f = phi / (sum of phi): dphi = (df - <df, f>) / (sum of phi).
    float inverse[2] = {0.f, 0.f}, along[2] = {0.f, 0.f};
    if constexpr (G::kUnit) {
      each([&](int s, int j) {
        float low, high;
        wide_phi<kMap>(x[s].r[j], decay[s].r[j], low, high);
        const float* df = gradient[s][j / 2] + j % 2 * 2;
        inverse[j % 2] += low + high, along[j % 2] += df[0] * low + df[1] * high;
      });
      invert_sums(inverse);
#pragma unroll
      for (int r = 0; r < 2; ++r) along[r] = quad_sum(along[r]) * inverse[r];
    }
    each([&](int s, int j) {
      float low, high;
      Bf16::unpack(as_bits(slope<kMap>(x[s].r[j], decay[s].r[j])), low, high);
      if (kMap == 1) low = -low, high = -high;
      if (G::kUnit) low *= inverse[j % 2], high *= inverse[j % 2];
      float* to = sum[s][j / 2] + j % 2 * 2;
      const float* df = gradient[s][j / 2] + j % 2 * 2;
      to[0] += (df[0] - along[j % 2]) * low, to[1] += (df[1] - along[j % 2]) * high;
    });
  }

 private:
  /// body(s, j) for register j of block s: its numbers belong to row g + j % 2 * 8.
  template <typename Body>
  static __device__ __forceinline__ void each(const Body& body) {
#pragma unroll
    for (int i = 0; i < G::kBlocks * 4; ++i) body(i / 4, i % 4);
  }
  template <int kMap>
  static __device__ __forceinline__ Pair phi(uint32_t x, uint32_t decay) {
    const Pair one = both(1.f);
    if constexpr (kMap == 0) return __hmax2_nan(__hadd2(as_pair(x), one), as_pair(decay));
    if constexpr (kMap == 1) return __hmax2_nan(__hsub2(one, as_pair(x)), as_pair(decay));
    return __hadd2(as_pair(tanh_of(x)), one);
  }
  /// But for its sign, which elu_flip turns.
  template <int kMap>
  static __device__ __forceinline__ Pair slope(uint32_t x, uint32_t decay) {
    if constexpr (kMap < 2) return __hmin2_nan(phi<kMap>(x, decay), both(1.f));
    const Pair t = as_pair(tanh_of(x));
    return __hfma2(__hneg2(t), t, both(1.f));
  }
  /// In fp32, for rows that are divided before they are rounded.
  template <int kMap>
  static __device__ __forceinline__ void wide_phi(uint32_t x, uint32_t decay, float& low,
                                                  float& high) {
    float at[2], other[2];
    Bf16::unpack(kMap == 2 ? tanh_of(x) : x, at[0], at[1]);
    Bf16::unpack(decay, other[0], other[1]);
    if constexpr (kMap == 0)
      low = fmaxf(1.f + at[0], other[0]), high = fmaxf(1.f + at[1], other[1]);
    if constexpr (kMap == 1)
      low = fmaxf(1.f - at[0], other[0]), high = fmaxf(1.f - at[1], other[1]);
    if constexpr (kMap == 2) low = 1.f + at[0], high = 1.f + at[1];
  }
  /// Parts of both rows' sums, a lane each, become 1 / sum; 0 for a sum of 0.
  static __device__ __forceinline__ void invert_sums(float (&sum)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] = quad_sum(sum[r]);
      sum[r] = sum[r] == 0.f ? 0.f : __fdividef(1.f, sum[r]);
    }
  }
};

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

/// Clears the rows of dead tokens: features of 0 are not 0.
template <int kCount>
__device__ __forceinline__ void keep_live(Fragment (&f)[kCount], uint32_t live) {
  if ((live & 0xffffu) == 0xffffu) return;
  const uint32_t low = live >> row_of(0) & 1 ? ~0u : 0u, high = live >> row_of(2) & 1 ? ~0u : 0u;
#pragma unroll
  for (int s = 0; s < kCount; ++s) {
    f[s].r[0] &= low, f[s].r[2] &= low, f[s].r[1] &= high, f[s].r[3] &= high;
  }
}
/// Rows g and g + 8 times a factor each, in bf16.
template <int kCount>
__device__ __forceinline__ void scale(Fragment (&f)[kCount], const float (&factor)[2]) {
#pragma unroll
  for (int s = 0; s < kCount; ++s) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      f[s].r[i] = as_bits(__hmul2(as_pair(f[s].r[i]), both(factor[i % 2])));
  }
}
template <int kCount>
__device__ __forceinline__ void turn(Fragment (&turned_f)[kCount], const Fragment (&f)[kCount]) {
#pragma unroll
  for (int s = 0; s < kCount; ++s) turned_f[s] = turned(f[s]);
}

}  // namespace fmmformer::cuda::strips
