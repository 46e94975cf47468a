// SPDX-License-Identifier: Apache-2.0
// Compiled with -fno-math-errno, without which no compiler vectorises a square root, and with
// -ffp-contract=off, so that an element's result does not depend on where in a block it lies.
#include "train/optimizer_loop.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <type_traits>

namespace fmmformer::train {
namespace {

template <typename Element>
using Accumulator = std::conditional_t<std::is_same_v<Element, double>, double, float>;

template <bool kAdaptive, typename Element>
void update_elements(const UpdateBlock& block, const UpdateFactors<double>& exact,
                     double exact_scale) {
  using T = Accumulator<Element>;
  const UpdateFactors<T> factors = factors_as<T>(exact);
  const T scale = static_cast<T>(exact_scale);
  const Element* __restrict gradient = static_cast<const Element*>(block.gradient);
  T* __restrict weight = static_cast<T*>(block.weight);
  T* __restrict first = static_cast<T*>(block.first_moment);
  T* __restrict second = static_cast<T*>(block.second_moment);
  for (int64_t i = block.begin; i < block.end; ++i) {
    update_element<kAdaptive, T>(factors, scale * static_cast<T>(gradient[i]), weight[i], first[i],
                                 second[i]);
  }
  if constexpr (!std::is_same_v<Element, T>) {
    Element* __restrict parameter = static_cast<Element*>(block.parameter);
    for (int64_t i = block.begin; i < block.end; ++i) parameter[i] = Element(weight[i]);
  }
}

template <typename Element>
double squares(const void* data, int64_t begin, int64_t end) {
  // Eight sums side by side: a fixed order of additions that still fills vector registers.
  constexpr int64_t kLanes = 8;
  const Element* values = static_cast<const Element*>(data);
  double sums[kLanes] = {};
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const double value = static_cast<Accumulator<Element>>(values[i + lane]);
      sums[lane] += value * value;
    }
  }
  for (int64_t lane = 0; i < end; ++i, ++lane) {
    const double value = static_cast<Accumulator<Element>>(values[i]);
    sums[lane] += value * value;
  }
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

template <typename Element>
void scale_elements(void* data, int64_t begin, int64_t end, double exact_factor) {
  using T = Accumulator<Element>;
  const T factor = static_cast<T>(exact_factor);
  Element* values = static_cast<Element*>(data);
  for (int64_t i = begin; i < end; ++i) values[i] = Element(static_cast<T>(values[i]) * factor);
}

/// Calls work with a value of the element's C++ type.
template <typename Work>
auto with_element(ElementType type, const Work& work) {
  switch (type) {
    case ElementType::kDouble:
      return work(double{});
    case ElementType::kBFloat16:
      return work(c10::BFloat16{});
    case ElementType::kHalf:
      return work(c10::Half{});
    case ElementType::kFloat:
      break;
  }
  return work(float{});
}

}  // namespace

void update_block(const UpdateBlock& block, const UpdateFactors<double>& factors,
                  double gradient_scale) {
  with_element(block.type, [&](auto element) {
    using Element = decltype(element);
    if (factors.adaptive) {
      update_elements<true, Element>(block, factors, gradient_scale);
    } else {
      update_elements<false, Element>(block, factors, gradient_scale);
    }
  });
}

double sum_of_squares(ElementType type, const void* data, int64_t begin, int64_t end) {
  return with_element(type,
                      [&](auto element) { return squares<decltype(element)>(data, begin, end); });
}

void scale_block(ElementType type, void* data, int64_t begin, int64_t end, double factor) {
  with_element(type,
               [&](auto element) { scale_elements<decltype(element)>(data, begin, end, factor); });
}

}  // namespace fmmformer::train
