// SPDX-License-Identifier: Apache-2.0
// Feature rows of sixteen queries or keys in a warp's registers. Unit features divide a row by its
// sum.
#pragma once

#include "attention/fmm/cuda/paper_maps.cuh"
#include "attention/fmm/cuda/strips/operands.cuh"

namespace fmmformer::cuda::strips {

/// A map's number. Strips know it at compile time; a warp of a team has one that it learns at run
/// time.
template <int kMap>
__device__ __forceinline__ constexpr int index_of(MapIndex<kMap>) {
  return kMap;
}
__device__ __forceinline__ constexpr int index_of(int map) { return map; }

/// Parts of both rows' sums, a lane each, become 1 / sum; 0 for a sum of 0.
__device__ __forceinline__ void invert_sums(float (&sum)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sum[r] = quad_sum(sum[r]);
    sum[r] = sum[r] == 0.f ? 0.f : __fdividef(1.f, sum[r]);
  }
}

/// Sixteen rows of q or k, and what the maps make of them as operands. Of the rows only e is kept
/// in registers, which are scarce; x is loaded from its tile whenever it is needed.
template <typename G, Side kSide = Side::kAny, bool kWide = G::kWide>
struct Inputs;

/// In bf16.
template <typename G, Side kSide>
struct Inputs<G, kSide, false> {
  typename G::Tile tile;
  Fragments<G> decay;

  __device__ __forceinline__ explicit Inputs(typename G::Tile tile) : tile(tile) {
    Fragments<G> x;
    load<G, kSide>(x, tile);
#pragma unroll
    for (int s = 0; s < G::kBlocks; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) decay[s].r[i] = decay_of(x[s].r[i]);
    }
  }

  template <int kMap>
  __device__ __forceinline__ void features(MapIndex<kMap>, Fragments<G>& f) const {
    load<G, kSide>(f, tile);
    if constexpr (!G::kUnit) {
      each([&](int s, int j) { f[s].r[j] = feature_pair<kMap>(f[s].r[j], decay[s].r[j]); });
    } else {
      Blocks<G> wide;
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
  __device__ __forceinline__ void add_input_gradient(MapIndex<kMap>, Blocks<G>& sum,
                                                     const Blocks<G>& gradient) const {
    Fragments<G> x;
    load<G, kSide>(x, tile);
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
      if constexpr (G::kUnit && kMap == 2) {  // 1 - t^2 = (1 + t) (2 - (1 + t))
        wide_phi<kMap>(x[s].r[j], decay[s].r[j], low, high);
        low *= 2.f - low, high *= 2.f - high;
      } else {
        slope_pair<kMap>(x[s].r[j], decay[s].r[j], low, high);
      }
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
  /// In fp32, for rows that are divided before they are rounded. tanh(x) + 1 = 2 / (1 + exp(-2x))
  /// keeps its digits where it is small: a row may have nothing else.
  template <int kMap>
  static __device__ __forceinline__ float wide_phi(float x, float decay) {
    if constexpr (kMap == 0) return fmaxf(1.f + x, decay);
    if constexpr (kMap == 1) return fmaxf(1.f - x, decay);
    return __fdividef(2.f, 1.f + Bf16::exp2(-2.f * kLog2E * x));
  }
  template <int kMap>
  static __device__ __forceinline__ void wide_phi(uint32_t x, uint32_t decay, float& low,
                                                  float& high) {
    float at[2], e[2];
    Bf16::unpack(x, at[0], at[1]), Bf16::unpack(decay, e[0], e[1]);
    low = wide_phi<kMap>(at[0], e[0]), high = wide_phi<kMap>(at[1], e[1]);
  }
};

/// In fp32, where all is done number by number.
template <typename G, Side kSide>
struct Inputs<G, kSide, true> {
  const float* tile;
  Fragments<G> decay;

  __device__ __forceinline__ explicit Inputs(const float* tile) : tile(tile) {
    Fragments<G> x;
    load<G>(x, tile);
    each(
        [&](int s, int n, int i) { decay[s].x[n][i] = Bf16::exp2(-kLog2E * fabsf(x[s].x[n][i])); });
  }

  template <typename Map>
  __device__ __forceinline__ void features(Map map, Fragments<G>& f) const {
    load<G>(f, tile);
    make(map, f);
    if constexpr (G::kUnit) {
      float sum[2] = {0.f, 0.f};
      each([&](int s, int n, int i) { sum[i / 2] += f[s].x[n][i]; });
      invert_sums(sum);
      scale(f, sum);
    }
  }

  /// sum += gradient with respect to f, times f's slope.
  template <typename Map>
  __device__ __forceinline__ void add_input_gradient(Map map, Blocks<G>& sum,
                                                     const Blocks<G>& gradient) const {
    Fragments<G> f;
    load<G>(f, tile);
    make(map, f);
    // With f = phi / (sum of phi): dphi = (df - <df, f>) / (sum of phi).
    float inverse[2] = {1.f, 1.f}, along[2] = {0.f, 0.f};
    if constexpr (G::kUnit) {
      inverse[0] = inverse[1] = 0.f;
      each([&](int s, int n, int i) {
        inverse[i / 2] += f[s].x[n][i], along[i / 2] += gradient[s][n][i] * f[s].x[n][i];
      });
      invert_sums(inverse);
#pragma unroll
      for (int r = 0; r < 2; ++r) along[r] = quad_sum(along[r]) * inverse[r];
    }
    const auto add = [&](const auto& slope) {
      each([&](int s, int n, int i) {
        sum[s][n][i] += (gradient[s][n][i] - along[i / 2]) * (slope(f[s].x[n][i]) * inverse[i / 2]);
      });
    };
    const int l = index_of(map);
    if (l == 2) {
      add([](float f) { return f * (2.f - f); });
    } else {
      const float sign = l == 1 ? -1.f : 1.f;
      add([&](float f) { return sign * fminf(f, 1.f); });
    }
  }

 private:
  template <typename Body>
  static __device__ __forceinline__ void each(const Body& body) {
#pragma unroll
    for (int i = 0; i < G::kBlocks * 8; ++i) body(i / 8, i / 4 % 2, i % 4);
  }
  /// Features of inputs. With f = tanh(x) + 1 = 2 / (1 + exp(-2x)), which keeps its digits where it
  /// is small, the slope is f (2 - f).
  template <typename Map>
  __device__ __forceinline__ void make(Map map, Fragments<G>& f) const {
    const int l = index_of(map);
    if (l == 2) {
      each([&](int s, int n, int i) {
        float& x = f[s].x[n][i];
        x = 2.f * reciprocal(1.f + Bf16::exp2(-2.f * kLog2E * x));
      });
    } else {
      const float sign = l == 1 ? -1.f : 1.f;
      each([&](int s, int n, int i) {
        float& x = f[s].x[n][i];
        x = fmaxf(fmaf(sign, x, 1.f), decay[s].x[n][i]);
      });
    }
  }
  static __device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
};

}  // namespace fmmformer::cuda::strips
