// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fmmformer::cuda {

/// The share of a normal distribution below x.
__device__ inline float normal_share(float x) { return 0.5f * (1.0f + erff(x * 0.70710678f)); }

__device__ inline float gelu(float x) { return x * normal_share(x); }

__device__ inline float gelu_slope(float x) {
  constexpr float kDensityAtZero = 0.39894228f;  // 1 / sqrt(2 pi)
  return normal_share(x) + x * kDensityAtZero * expf(-0.5f * x * x);
}

}  // namespace fmmformer::cuda
