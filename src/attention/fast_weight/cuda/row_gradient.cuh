// SPDX-License-Identifier: Apache-2.0
// The gradients of the numbers of one row: what its query is divided by, its overlap and its beta
// (docs/math.md, 13).
#pragma once

#include "attention/fast_weight/cuda/tiles.cuh"

namespace fmmformer::cuda::fast_weight {

/// <y, dY>, <x, q> with q of docs/math.md 14, and <dR, v>.
struct RowDots {
  float queries, keys, values;
};
struct RowGradient {
  float norm = 0.f, overlap = 0.f, beta = 0.f;
};

__device__ __forceinline__ RowGradient gradient_of_row(const RowDots& dots, float norm,
                                                       float overlap, const SweepArgs& args,
                                                       const Place& place, int token,
                                                       int first_live) {
  RowGradient gradient;
  if (!place.live(args, token)) return gradient;
  const float write = dots.values, erase = -dots.keys;
  gradient.beta = write + erase;
  if (args.normaliser != FastWeightNormaliser::kNone)
    gradient.norm = divisor_slope(args, norm) * dots.queries / norm;
  if (args.normaliser == FastWeightNormaliser::kOutputAndKey) {
    const float own = divisor_of(args, overlap), share = overlap / own;
    const float slope = share * divisor_slope(args, own), beta = beta_of(args, place, token);
    if (token != first_live)
      gradient.overlap = beta * (write * (1.f - slope) + erase * (1.f - 2.f * slope) / own) / own;
    gradient.beta = share * (write + erase / own);
  }
  return gradient;
}

__device__ inline void store_beta_gradient(const SweepArgs& args, const Place& place, int token,
                                           float value) {
  const int64_t index = (int64_t(place.b) * args.length + token) * args.heads + place.h;
  switch (args.beta.type) {
    case 0:
      return store_element(args.dbeta, index, Element::kFloat32, value);
    case 1:
      return store_element(args.dbeta, index, Element::kBFloat16, value);
    case 2:
      return store_element(args.dbeta, index, Element::kFloat16, value);
    default:
      static_cast<double*>(args.dbeta)[index] = value;
  }
}

}  // namespace fmmformer::cuda::fast_weight
