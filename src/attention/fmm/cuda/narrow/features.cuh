// SPDX-License-Identifier: Apache-2.0
// Feature rows of sixteen tokens, and gradients with respect to them.
#pragma once

#include "attention/fmm/cuda/narrow/sequence.cuh"

namespace fmmformer::cuda::narrow {

/// phi in fp32, for rows that are divided before they are rounded. tanh(x) + 1 = 2 / (1 + exp(-2x))
/// keeps its digits where it is small: a row may have nothing else.
template <int kMap>
__device__ __forceinline__ void wide_phi(uint32_t x, uint32_t decay, float (&phi)[2]) {
  float at[2], e[2];
  Bf16::unpack(x, at[0], at[1]), Bf16::unpack(decay, e[0], e[1]);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if constexpr (kMap == 0) phi[i] = fmaxf(1.f + at[i], e[i]);
    if constexpr (kMap == 1) phi[i] = fmaxf(1.f - at[i], e[i]);
    if constexpr (kMap == 2) phi[i] = 2.f * reciprocal(1.f + Bf16::exp2(-2.f * kLog2E * at[i]));
  }
}
/// Parts of both rows' sums, a lane each, become 1 / sum; 0 for a sum of 0.
__device__ __forceinline__ void invert_sums(float (&sum)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sum[r] = quad_sum(sum[r]);
    sum[r] = sum[r] == 0.f ? 0.f : reciprocal(sum[r]);
  }
}

/// Sixteen rows: numbers and exp(-|x|), from which come the feature rows of all maps.
template <typename G>
struct Inputs {
  Fragments x, decay;

  __device__ __forceinline__ Inputs(uint32_t tile, uint32_t lane) {
    load_rows(x, tile, by_row(lane));
    each([&](int s, int j) { decay[s].r[j] = decay_of(x[s].r[j]); });
  }
  template <int kMap>
  __device__ __forceinline__ void features(MapIndex<kMap>, Fragments& f) const {
    if constexpr (!G::kUnit) {
      each([&](int s, int j) { f[s].r[j] = feature_pair<kMap>(x[s].r[j], decay[s].r[j]); });
    } else {
      float phi[kBlocks * 4][2], sum[2] = {0.f, 0.f};
      each([&](int s, int j) {
        float(&pair)[2] = phi[s * 4 + j];
        wide_phi<kMap>(x[s].r[j], decay[s].r[j], pair);
        sum[j % 2] += pair[0] + pair[1];
      });
      invert_sums(sum);
      each([&](int s, int j) {
        const float(&pair)[2] = phi[s * 4 + j];
        f[s].r[j] = Bf16::pack(pair[0] * sum[j % 2], pair[1] * sum[j % 2]);
      });
    }
  }
  /// sum += gradient with respect to a unit feature row, times the map's slope: with
  /// f = phi / (sum of phi), dphi = (df - <df, f>) / (sum of phi).
  template <int kMap>
  __device__ __forceinline__ void add_unit_gradient(MapIndex<kMap>, Rows& sum,
                                                    const Rows& gradient) const {
    float inverse[2] = {0.f, 0.f}, along[2] = {0.f, 0.f};
    each([&](int s, int j) {
      float phi[2];
      wide_phi<kMap>(x[s].r[j], decay[s].r[j], phi);
      const float* df = gradient[s][j / 2] + j % 2 * 2;
      inverse[j % 2] += phi[0] + phi[1], along[j % 2] += df[0] * phi[0] + df[1] * phi[1];
    });
    invert_sums(inverse);
#pragma unroll
    for (int r = 0; r < 2; ++r) along[r] = quad_sum(along[r]) * inverse[r];
    each([&](int s, int j) {
      float slope[2];
      wide_phi<kMap>(x[s].r[j], decay[s].r[j], slope);
      float* to = sum[s][j / 2] + j % 2 * 2;
      const float* df = gradient[s][j / 2] + j % 2 * 2;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (kMap == 0) slope[i] = fminf(slope[i], 1.f);
        if (kMap == 1) slope[i] = -fminf(slope[i], 1.f);
        if (kMap == 2) slope[i] *= 2.f - slope[i];  // 1 - t^2 = (1 + t) (2 - (1 + t))
        to[i] += (df[i] - along[j % 2]) * (slope[i] * inverse[j % 2]);
      }
    });
  }

 private:
  /// body(s, j) for register j of block s: its numbers belong to row g + j % 2 * 8.
  template <typename Body>
  static __device__ __forceinline__ void each(const Body& body) {
#pragma unroll
    for (int i = 0; i < kBlocks * 4; ++i) body(i / 4, i % 4);
  }
};
/// body(map) for every map, by one piece of code: the maps' work is not mixed, which would need
/// more registers than there are.
template <typename G, typename Body>
__device__ __forceinline__ void each_map_in_turn(const Body& body) {
#pragma unroll 1
  for (int map = 0; map < G::kMaps; ++map) body(map);
}
/// body(the map as a constant).
template <typename G, typename Body>
__device__ __forceinline__ void with_map(int map, const Body& body) {
  // Branches: a table of three took longer.
  if (G::kMaps > 2 && map == 2)
    body(MapIndex<2>());
  else if (G::kMaps > 1 && map == 1)
    body(MapIndex<1>());
  else
    body(MapIndex<0>());
}

/// Feature rows of a tile at one map.
template <typename G, typename Map>
__device__ __forceinline__ void make_features(Map map, Fragments& f, uint32_t tile, uint32_t lane) {
  Inputs<G>(tile, lane).features(map, f);
}
/// A map's slopes in sixteen rows, which feature rows f tell: elu's min(f, 1), elu_flip's the same
/// with a minus, tanh1's 1 - t^2 = (1 + t) (2 - (1 + t)).
template <typename G>
struct Slopes {
  float of[kBlocks * 4][2];

  __device__ __forceinline__ Slopes(int map, const Fragments& f)
      : Slopes(
            map, f, [](Pair phi, int) { return __hmin2(phi, both(1.f)); },
            [](Pair phi, int) { return __hmul2(phi, __hsub2(both(2.f), phi)); }) {}
  /// `of_elu(f, r)` and `of_tanh(f, r)` of row g + 8 r.
  template <typename OfElu, typename OfTanh>
  __device__ __forceinline__ Slopes(int map, const Fragments& f, const OfElu& of_elu,
                                    const OfTanh& of_tanh) {
    const uint32_t sign = map == 1 ? 0x80000000u : 0u;
    const auto each = [&](const auto& slope) {
#pragma unroll
      for (int i = 0; i < kBlocks * 4; ++i) {
        const uint32_t pair = as_bits(slope(as_pair(f[i / 4].r[i % 4]), i % 2));
        // An instruction each: a sum of the uppermost bits alone turns the sign over, as `^` does.
        of[i][0] = __uint_as_float(pair * 0x10000u + sign);
        of[i][1] = __uint_as_float((pair & 0xffff0000u) ^ sign);
      }
    };
    if (G::kMaps > 2 && map == 2)
      each(of_tanh);
    else
      each(of_elu);
  }
  /// sum += gradient with respect to the map's rows, times the slopes.
  __device__ __forceinline__ void add(Rows& sum, const Rows& gradient) const {
#pragma unroll
    for (int i = 0; i < kBlocks * 8; ++i) {
      const int block = i / 8, j = i % 8 / 2;
      sum[block][j / 2][j % 2 * 2 + i % 2] +=
          gradient[block][j / 2][j % 2 * 2 + i % 2] * of[block * 4 + j][i % 2];
    }
  }
};
/// sum += gradient with respect to a map's rows f, times the map's slope. Unit features' tile is
/// loaded again.
template <typename G>
__device__ __forceinline__ void add_input_gradient(int map, const Fragments& f, uint32_t tile,
                                                   uint32_t lane, Rows& sum, const Rows& gradient) {
  if constexpr (G::kUnit) {
    const Inputs<G> x(tile, lane);
    with_map<G>(map, [&](auto number) { x.add_unit_gradient(number, sum, gradient); });
  } else {
    Slopes<G>(map, f).add(sum, gradient);
  }
}

}  // namespace fmmformer::cuda::narrow
