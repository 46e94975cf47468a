// SPDX-License-Identifier: Apache-2.0
#include "attention/cpu/targets.h"
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nn/cpu/exp_sum.cpp"
#include "hwy/foreach_target.h"
// clang-format on
#include <algorithm>
#include <cmath>

#include "attention/cpu/simd_math-inl.h"
#include "hwy/highway.h"
#include "nn/cpu/exp_sum.h"
#include "nn/cpu/load_first-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fmmformer::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kBlock = 1024;  // lanes are summed up in their own type for so many only

/// Calls use(first, count, mask, exponentials) for one vector after another.
template <class D, class Use>
HWY_INLINE double for_each_vector(D d, std::span<const hn::TFromD<D>> values,
                                  hn::TFromD<D> reference, const Use& use) {
  const size_t lanes = hn::Lanes(d);
  double total = 0;
  for (size_t block = 0; block < values.size(); block += kBlock) {
    const size_t end = std::min(block + kBlock, values.size());
    auto sum = hn::Zero(d);
    for (size_t i = block; i < end; i += lanes) {
      const size_t count = std::min(lanes, end - i);
      const auto value = count == lanes ? hn::LoadU(d, values.data() + i)
                                        : load_first(d, values.data() + i, count);
      const auto weight = exp_nonpositive(d, hn::Sub(value, hn::Set(d, reference)));
      sum = hn::Add(sum, use(i, count, value, weight));
    }
    total += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum)));
  }
  return total;
}

double ExpSum(std::span<const float> values, float reference, float least) {
  const hn::ScalableTag<float> d;
  return for_each_vector(d, values, reference, [&](size_t, size_t count, auto value, auto weight) {
    const auto counts = hn::And(hn::FirstN(d, count), hn::Ge(value, hn::Set(d, least)));
    // What is no number is not left out: it has to show.
    const auto wrong = hn::And(hn::FirstN(d, count), hn::IsNaN(value));
    return hn::IfThenElseZero(hn::Or(counts, wrong), weight);
  });
}

float Highest(std::span<const float> values) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  float highest = values[0];
  size_t i = 0;
  if (values.size() >= lanes) {
    auto most = hn::LoadU(d, values.data());
    for (; i + lanes <= values.size(); i += lanes) most = hn::Max(most, hn::LoadU(d, &values[i]));
    highest = hn::GetLane(hn::MaxOfLanes(d, most));
  }
  for (; i < values.size(); ++i) highest = std::max(highest, values[i]);
  return highest;
}

template <typename T>
double exp_all_of(std::span<const T> values, T reference, T* out) {
  const hn::ScalableTag<T> d;
  return for_each_vector(d, values, reference, [&](size_t i, size_t count, auto, auto weight) {
    const auto is_there = hn::FirstN(d, count);
    hn::BlendedStore(weight, is_there, d, out + i);
    return hn::IfThenElseZero(is_there, weight);
  });
}
double ExpAllFloat(std::span<const float> values, float reference, float* out) {
  return exp_all_of(values, reference, out);
}
double ExpAllDouble(std::span<const double> values, double reference, double* out) {
  return exp_all_of(values, reference, out);
}

}  // namespace fmmformer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fmmformer::cpu {

HWY_EXPORT(Highest);
HWY_EXPORT(ExpSum);
HWY_EXPORT(ExpAllFloat);
HWY_EXPORT(ExpAllDouble);

float highest(std::span<const float> values) { return HWY_DYNAMIC_DISPATCH(Highest)(values); }
double exp_sum(std::span<const float> values, float reference, float least) {
  return HWY_DYNAMIC_DISPATCH(ExpSum)(values, reference, least);
}
double log_sum_exp(std::span<const float> values) {
  const float reference = highest(values);
  return static_cast<double>(reference) + std::log(exp_sum(values, reference));
}
double exp_all(std::span<const float> values, float reference, float* out) {
  return HWY_DYNAMIC_DISPATCH(ExpAllFloat)(values, reference, out);
}
double exp_all(std::span<const double> values, double reference, double* out) {
  return HWY_DYNAMIC_DISPATCH(ExpAllDouble)(values, reference, out);
}

}  // namespace fmmformer::cpu
#endif  // HWY_ONCE
