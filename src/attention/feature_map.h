// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "attention/host_device.h"
#include "fmmformer/attention/options.h"

namespace fmmformer {

FMMFORMER_HOST_DEVICE constexpr bool needs_exp(FeatureMap map) {
  return map != FeatureMap::kRelu && map != FeatureMap::kIdentity;
}

// Not in fmmformer itself: argument-dependent lookup would find these beside the SIMD sources' own.
namespace scalar {
#include "attention/feature_map.inc"
}  // namespace scalar

/// The Ops of feature_map.inc for plain numbers.
template <typename T>
struct ScalarOps {
  FMMFORMER_HOST_DEVICE T constant(double value) const { return static_cast<T>(value); }
  FMMFORMER_HOST_DEVICE T add(T a, T b) const { return a + b; }
  FMMFORMER_HOST_DEVICE T sub(T a, T b) const { return a - b; }
  FMMFORMER_HOST_DEVICE T mul(T a, T b) const { return a * b; }
  FMMFORMER_HOST_DEVICE T div(T a, T b) const { return a / b; }
  FMMFORMER_HOST_DEVICE T max0(T x) const { return x < T(0) ? T(0) : x; }
  FMMFORMER_HOST_DEVICE T select_positive(T x, T a, T b) const { return x > T(0) ? a : b; }
  FMMFORMER_HOST_DEVICE T select_negative(T x, T a, T b) const { return x < T(0) ? a : b; }
  FMMFORMER_HOST_DEVICE T log1p(T x) const { return std::log1p(x); }
};

/// phi(x) of one number.
template <typename T>
FMMFORMER_HOST_DEVICE inline T feature_of(FeatureMap map, T x) {
  return scalar::feature_value(ScalarOps<T>(), map, x, std::exp(-std::abs(x)));
}

}  // namespace fmmformer
