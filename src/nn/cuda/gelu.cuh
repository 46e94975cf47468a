// SPDX-License-Identifier: Apache-2.0
// gelu by the error function, computed in fp32 for elements of type T. For fp32 with the library's
// functions; for half types, which round a thousand times coarser, with a third of their
// instructions.
#pragma once

#include <type_traits>

namespace fmmformer::cuda {

/// The normal distribution at x: the share of it below x, and exp(-x^2 / 2).
struct Normal {
  float share, bell;
};

constexpr float kSqrtHalf = 0.70710678f;

/// Abramowitz and Stegun 7.1.26 for erfc: within 1.5e-7. Of the tail, by which negative x are
/// multiplied, that is 5e-4 of itself up to |x| = 4, where gelu is 1e-4, and 2e-3 at 5.
__device__ inline Normal approximate_normal(float x) {
  const float bell = __expf(-0.5f * x * x);
  const float t = __fdividef(1.0f, fmaf(0.3275911f * kSqrtHalf, fabsf(x), 1.0f));
  float tail = fmaf(t, 0.5f * 1.061405429f, 0.5f * -1.453152027f);
  tail = fmaf(t, tail, 0.5f * 1.421413741f);
  tail = fmaf(t, tail, 0.5f * -0.284496736f);
  tail = fmaf(t, tail, 0.5f * 0.254829592f) * t * bell;
  return {x < 0 ? tail : 1.0f - tail, bell};
}

__device__ inline float exact_share(float x) { return 0.5f * (1.0f + erff(x * kSqrtHalf)); }

template <typename T>
__device__ inline float gelu(float x) {
  if constexpr (std::is_same_v<T, float>) return x * exact_share(x);
  return x * approximate_normal(x).share;
}

template <typename T>
__device__ inline float gelu_slope(float x) {
  constexpr float kDensityAtZero = 0.39894228f;  // 1 / sqrt(2 pi)
  if constexpr (std::is_same_v<T, float>) {
    return exact_share(x) + x * kDensityAtZero * expf(-0.5f * x * x);
  }
  const Normal normal = approximate_normal(x);
  return fmaf(x * kDensityAtZero, normal.bell, normal.share);
}

}  // namespace fmmformer::cuda
