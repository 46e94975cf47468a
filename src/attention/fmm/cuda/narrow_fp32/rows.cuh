// SPDX-License-Identifier: Apache-2.0
// Sixteen rows in a warp's registers: as numbers, as features, times weights.
#pragma once

#include "attention/fmm/cuda/narrow_fp32/sequence.cuh"

namespace fmmformer::cuda::narrow_fp32 {

/// Body(s, i) for element i, as in a Block, of block s of channels.
template <typename Body>
__device__ __forceinline__ void each_element(const Body& body) {
#pragma unroll
  for (int i = 0; i < kBlocks * 8; ++i) body(i / 8, i % 8);
}
__device__ __forceinline__ float& element(Rows& rows, int s, int i) {
  return rows[s][i / 4][i % 4];
}
__device__ __forceinline__ float element(const Rows& rows, int s, int i) {
  return rows[s][i / 4][i % 4];
}
/// Which of the lane's two rows element i belongs to.
constexpr __device__ int row_number(int i) { return i % 4 / 2; }

/// A tile of own rows.
__device__ __forceinline__ void load_numbers(Rows& rows, uint32_t tile, int lane) {
  const uint32_t mine = lane / 4 * kNumberRow + lane % 4 * 8 + (lane / 4 % 4) * 32;
#pragma unroll
  for (int i = 0; i < kBlocks * 4; ++i) {
    float* to = rows[i / 4][i / 2 % 2] + i % 2 * 2;
    asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];\n"
                 : "=f"(to[0]), "=f"(to[1])
                 : "r"(tile + (mine ^ i / 2 * 32) + i % 2 * 8 * kNumberRow)
                 : "memory");
  }
}
/// A tile's numbers, with its power of two.
__device__ __forceinline__ void load_rows(Rows& rows, uint32_t tile, int lane) {
#pragma unroll
  for (int s = 0; s < kBlocks; ++s) {
    const Left x = load_operand<Left>(tile + (by_row(lane) ^ s * 32));
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 both = joined(x.high[j], x.low[j]);
      rows[s][j / 2][j % 2 * 2] = both.x, rows[s][j / 2][j % 2 * 2 + 1] = both.y;
    }
  }
}
/// Rows times `scale` as operands.
__device__ __forceinline__ void split_rows(Left (&x)[kBlocks], const Rows& rows, float scale) {
#pragma unroll
  for (int s = 0; s < kBlocks; ++s) x[s] = split_result(rows[s], scale);
}
/// Rows times a field's scaled weights and `scale`, as operands.
template <typename G>
__device__ __forceinline__ void weigh(Left (&x)[kBlocks], const Rows& rows, int field,
                                      float scale) {
  const float* weights = shared_at<float>(G::kScaledWeights) + field * kDim + lane_id() % 4 * 2;
#pragma unroll
  for (int n = 0; n < kBlocks * 2; ++n) {
    float2 w = *reinterpret_cast<const float2*>(weights + n * 8);
    w.x *= scale, w.y *= scale;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float* c = rows[n / 2][n % 2] + r * 2;
      const int j = n % 2 * 2 + r;
      split(x[n / 2].high[j], x[n / 2].low[j], c[0] * w.x, c[1] * w.y);
    }
  }
}
/// sum += rows * weight * factor of rows g and g + 8.
template <typename G>
__device__ __forceinline__ void add_field(const Sequence<G>& at, Rows& sum, const Rows& rows,
                                          const float (&factor)[2], int field) {
  const float* weights = at.weights(field) + lane_id() % 4 * 2;
#pragma unroll
  for (int n = 0; n < kBlocks * 2; ++n) {
    const float2 w = *reinterpret_cast<const float2*>(weights + n * 8);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      sum[n / 2][n % 2][i] += (i % 2 ? w.y : w.x) * (factor[i / 2] * rows[n / 2][n % 2][i]);
  }
}

/// Sums of columns over sixteen rows, a column a lane: see channel_of_lane. Lanes that differ in a
/// bit of g share their numbers out, half for each, until each has one.
__device__ __forceinline__ float sum_columns(float (&x)[kBlocks * 4]) {
#pragma unroll
  for (int half = kBlocks * 2; half > 0; half /= 2) {
    const int bit = half * 4;
    const bool upper = lane_id() & bit;
#pragma unroll
    for (int i = 0; i < half; ++i)
      x[i] = (upper ? x[half + i] : x[i]) + __shfl_xor_sync(~0u, upper ? x[i] : x[half + i], bit);
  }
  return x[0];
}
__device__ __forceinline__ int channel_of_lane() {
  return lane_id() / 8 * 8 + lane_id() % 4 * 2 + lane_id() / 4 % 2;
}

/// phi(unit x) of the paper's map number kMap. tanh(x) + 1 = 2 / (1 + exp(-2x)) keeps its digits
/// where it is small.
template <int kMap>
__device__ __forceinline__ float phi(float x, float unit) {
  if constexpr (kMap == 2) return 2.f * reciprocal(1.f + Bf16::exp2(x * (-2.f * kLog2E * unit)));
  const float decay = Bf16::exp2(fabsf(x) * (-kLog2E * unit));
  return fmaxf(kMap == 0 ? 1.f + x * unit : 1.f - x * unit, decay);
}
/// phi'(x), from phi(x).
template <int kMap>
__device__ __forceinline__ float slope(float f) {
  if constexpr (kMap == 2) return f * (2.f - f);  // 1 - t^2 = (1 + t) (2 - (1 + t))
  return kMap == 0 ? fminf(f, 1.f) : -fminf(f, 1.f);
}
/// Parts of both rows' sums, a lane each, become 1 / sum; 0 for a sum of 0.
__device__ __forceinline__ void invert_sums(float (&sum)[2]) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sum[r] = quad_sum(sum[r]);
    sum[r] = sum[r] == 0.f ? 0.f : reciprocal(sum[r]);
  }
}

/// Feature rows of unit x; `inverse`: of unit features, 1 / (sum of phi) of both rows.
template <typename G, int kMap>
__device__ __forceinline__ void make_features(MapIndex<kMap>, Rows& f, const Rows& x, float unit,
                                              float (&inverse)[2]) {
  inverse[0] = inverse[1] = 0.f;
  each_element([&](int s, int i) {
    const float y = phi<kMap>(element(x, s, i), unit);
    element(f, s, i) = y;
    if (G::kUnit) inverse[row_number(i)] += y;
  });
  if constexpr (G::kUnit) {
    invert_sums(inverse);
    each_element([&](int s, int i) { element(f, s, i) *= inverse[row_number(i)]; });
  }
}
/// sum += gradient with respect to rows f of make_features, times the map's slope. With unit
/// features, f = phi / (sum of phi): dphi = (df - <df, f>) / (sum of phi).
template <typename G, int kMap>
__device__ __forceinline__ void add_input_gradient(MapIndex<kMap>, Rows& sum, const Rows& gradient,
                                                   const Rows& f, const float (&inverse)[2]) {
  if constexpr (!G::kUnit) {
    each_element([&](int s, int i) {
      element(sum, s, i) += element(gradient, s, i) * slope<kMap>(element(f, s, i));
    });
    return;
  }
  float along[2] = {0.f, 0.f}, total[2];
  each_element(
      [&](int s, int i) { along[row_number(i)] += element(gradient, s, i) * element(f, s, i); });
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    along[r] = quad_sum(along[r]);
    total[r] = inverse[r] == 0.f ? 0.f : reciprocal(inverse[r]);
  }
  each_element([&](int s, int i) {
    const int r = row_number(i);
    element(sum, s, i) += (element(gradient, s, i) - along[r]) *
                          (slope<kMap>(element(f, s, i) * total[r]) * inverse[r]);
  });
}

/// body(map) for every map, by one piece of code: the maps' work is not mixed, which
/// would need more registers than there are.
template <typename G, typename Body>
__device__ __forceinline__ void each_map_in_turn(const Body& body) {
#pragma unroll 1
  for (int map = 0; map < G::kMaps; ++map) body(map);
}
/// body(the map as a constant).
template <typename G, typename Body>
__device__ __forceinline__ void with_map(int map, const Body& body) {
  if (map == 0) body(MapIndex<0>());
  if constexpr (G::kMaps > 1) {
    if (map == 1) body(MapIndex<1>());
  }
  if constexpr (G::kMaps > 2) {
    if (map == 2) body(MapIndex<2>());
  }
}

/// Feature rows of a tile of own rows at a map.
template <typename G>
__device__ __forceinline__ void load_features(Rows& f, int map, uint32_t tile, int lane,
                                              float (&inverse)[2]) {
  Rows x;
  load_numbers(x, tile, lane);
  with_map<G>(map, [&](auto constant) { make_features<G>(constant, f, x, 1.f, inverse); });
}

/// A chunk's block of products, of the warp's rows with 64 tokens, as operands:
/// inner[t] = body(t, products of tile t), with zeros for what a row must not see. Those are tokens
/// after it or, kBefore, before it.
template <bool kBefore, typename Body>
__device__ __forceinline__ void split_seen(Left (&inner)[kTiles], Block (&c)[kTiles], int warp,
                                           const Body& body) {
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    if (kBefore ? t >= warp : t <= warp) {
      if (t == warp) cut_at_diagonal<kBefore>(c[t]);
      inner[t] = body(t, c[t]);
    } else {
      inner[t] = {};
    }
  }
}

/// rows = a sums_a + b sums_b.
__device__ __forceinline__ void join(Rows& rows, float a, float b, const Rows& more) {
  each_element([&](int s, int i) {
    element(rows, s, i) = a * element(rows, s, i) + b * element(more, s, i);
  });
}

}  // namespace fmmformer::cuda::narrow_fp32
