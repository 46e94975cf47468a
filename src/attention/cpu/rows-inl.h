// SPDX-License-Identifier: Apache-2.0
// Arithmetic on single rows. Counts are rounded up to whole vectors: rows have room for that.
#if defined(FMMFORMER_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FMMFORMER_ROWS_INL_H_
#undef FMMFORMER_ROWS_INL_H_
#else
#define FMMFORMER_ROWS_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fmmformer::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D>
HWY_INLINE hn::TFromD<D> sum_of_lanes(D d, hn::Vec<D> v) {
  return hn::GetLane(hn::SumOfLanes(d, v));
}

template <typename T>
HWY_INLINE void fill_row(int64_t count, T value, T* row) {
  const hn::ScalableTag<T> d;
  const auto values = hn::Set(d, value);
  for (int64_t c = 0; c < count; c += hn::Lanes(d)) hn::StoreU(values, d, row + c);
}

/// to = factor * from; may be the same row.
template <typename T>
HWY_INLINE void scale_row(int64_t count, T factor, const T* from, T* to) {
  const hn::ScalableTag<T> d;
  const auto scale = hn::Set(d, factor);
  for (int64_t c = 0; c < count; c += hn::Lanes(d))
    hn::StoreU(hn::Mul(hn::LoadU(d, from + c), scale), d, to + c);
}

/// row *= factors, element by element.
template <typename T>
HWY_INLINE void multiply_row(int64_t count, const T* factors, T* row) {
  const hn::ScalableTag<T> d;
  for (int64_t c = 0; c < count; c += hn::Lanes(d)) {
    hn::StoreU(hn::Mul(hn::LoadU(d, row + c), hn::LoadU(d, factors + c)), d, row + c);
  }
}

template <typename T>
HWY_INLINE void add_row(int64_t count, const T* from, T* to) {
  const hn::ScalableTag<T> d;
  for (int64_t c = 0; c < count; c += hn::Lanes(d)) {
    hn::StoreU(hn::Add(hn::LoadU(d, to + c), hn::LoadU(d, from + c)), d, to + c);
  }
}

/// to += factor * from.
template <typename T>
HWY_INLINE void add_scaled_row(int64_t count, T factor, const T* from, T* to) {
  const hn::ScalableTag<T> d;
  const auto scale = hn::Set(d, factor);
  for (int64_t c = 0; c < count; c += hn::Lanes(d)) {
    hn::StoreU(hn::MulAdd(scale, hn::LoadU(d, from + c), hn::LoadU(d, to + c)), d, to + c);
  }
}

template <typename T>
HWY_INLINE T dot_of_rows(int64_t count, const T* a, const T* b) {
  const hn::ScalableTag<T> d;
  auto sum = hn::Zero(d);
  for (int64_t c = 0; c < count; c += hn::Lanes(d))
    sum = hn::MulAdd(hn::LoadU(d, a + c), hn::LoadU(d, b + c), sum);
  return sum_of_lanes(d, sum);
}

}  // namespace fmmformer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // FMMFORMER_ROWS_INL_H_
