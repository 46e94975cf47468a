// SPDX-License-Identifier: Apache-2.0
// One element's update, for Adam, AdamW and RAdam alike: what the CPU loop, and a kernel for the
// GPU, run for every element. The three differ only in the factors, which are the same for all
// elements of a step and are worked out once, in double.
#pragma once

#include <cmath>
#include <cstdint>

#include "attention/host_device.h"

namespace fmmformer::train {

/// What a step of an optimizer has in common for all elements. T is the type of the moments.
template <typename T>
struct UpdateFactors {
  T beta1;
  T one_minus_beta1;
  T beta2;
  T one_minus_beta2;
  T l2;            // added to the gradient, times the weight (Adam)
  T decay;         // share of the weight that is taken away first (AdamW, RAdam)
  T moment_scale;  // on the root of the second moment
  T eps;           // added to that root
  T step_size;     // on the whole change
  bool adaptive;   // false: RAdam's first steps, which do not divide by the second moment
};

template <typename To, typename From>
FMMFORMER_HOST_DEVICE inline UpdateFactors<To> factors_as(const UpdateFactors<From>& from) {
  return {.beta1 = static_cast<To>(from.beta1),
          .one_minus_beta1 = static_cast<To>(from.one_minus_beta1),
          .beta2 = static_cast<To>(from.beta2),
          .one_minus_beta2 = static_cast<To>(from.one_minus_beta2),
          .l2 = static_cast<To>(from.l2),
          .decay = static_cast<To>(from.decay),
          .moment_scale = static_cast<To>(from.moment_scale),
          .eps = static_cast<To>(from.eps),
          .step_size = static_cast<To>(from.step_size),
          .adaptive = from.adaptive};
}

/// The same as plain numbers, for memory that host and device share by copying.
inline constexpr int kFactorCount = 10;
struct PackedFactors {
  double value[kFactorCount];
};

inline PackedFactors packed(const UpdateFactors<double>& factors) {
  return {{factors.beta1, factors.one_minus_beta1, factors.beta2, factors.one_minus_beta2,
           factors.l2, factors.decay, factors.moment_scale, factors.eps, factors.step_size,
           factors.adaptive ? 1.0 : 0.0}};
}

FMMFORMER_HOST_DEVICE inline UpdateFactors<double> unpacked(const double* value) {
  return {.beta1 = value[0],
          .one_minus_beta1 = value[1],
          .beta2 = value[2],
          .one_minus_beta2 = value[3],
          .l2 = value[4],
          .decay = value[5],
          .moment_scale = value[6],
          .eps = value[7],
          .step_size = value[8],
          .adaptive = value[9] != 0};
}

/// One element: advances the moments and the weight.
///   g = gradient + l2 * weight
///   first = beta1 * first + (1 - beta1) * g        second = beta2 * second + (1 - beta2) * g^2
///   weight = weight - (decay * weight + step_size * first / (moment_scale * sqrt(second) + eps))
/// The weight is rounded once a step: its own roundings are the largest error of training in fp32.
/// kAdaptive = factors.adaptive; a template parameter, so that the loop over elements has no
/// branch.
template <bool kAdaptive, typename T>
FMMFORMER_HOST_DEVICE inline void update_element(const UpdateFactors<T>& factors, T gradient,
                                                 T& weight, T& first, T& second) {
  const T g = gradient + factors.l2 * weight;
  first = factors.beta1 * first + factors.one_minus_beta1 * g;
  second = factors.beta2 * second + factors.one_minus_beta2 * (g * g);
  const T direction =
      kAdaptive ? first / (factors.moment_scale * std::sqrt(second) + factors.eps) : first;
  weight -= factors.decay * weight + factors.step_size * direction;
}

/// The factor that brings a gradient of this norm down to max_norm. As in torch, the small constant
/// keeps a zero gradient from dividing by zero.
template <typename T>
FMMFORMER_HOST_DEVICE inline T clip_factor(T norm, T max_norm) {
  const T factor = max_norm / (norm + static_cast<T>(1e-6));
  return factor < T(1) || factor != factor ? factor : T(1);
}

}  // namespace fmmformer::train
