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

/// Rows whose lanes are added up together.
inline constexpr int64_t kRowsTogether = 8;

// Four vectors to one: every 128 bits of it have, for each of the four, `combine` of its own four
// numbers in these bits.
template <class D, typename Combine>
HWY_INLINE hn::Vec<D> combine_in_blocks(D d, const hn::Vec<D>* rows, const Combine& combine) {
  const hn::RepartitionToWide<D> wide;
  const auto pairs01 =
      combine(hn::InterleaveLower(d, rows[0], rows[1]), hn::InterleaveUpper(d, rows[0], rows[1]));
  const auto pairs23 =
      combine(hn::InterleaveLower(d, rows[2], rows[3]), hn::InterleaveUpper(d, rows[2], rows[3]));
  const auto a = hn::BitCast(wide, pairs01), b = hn::BitCast(wide, pairs23);
  return combine(hn::BitCast(d, hn::InterleaveLower(wide, a, b)),
                 hn::BitCast(d, hn::InterleaveUpper(wide, a, b)));
}

// The blocks of 128 bits of a vector, combined.
template <class D, typename Combine>
HWY_INLINE auto combine_blocks(D d, hn::Vec<D> v, const Combine& combine) {
  if constexpr (hn::MaxLanes(d) * sizeof(hn::TFromD<D>) <= 16) {
    return v;
  } else {
    const hn::Half<D> half;
    return combine_blocks(half, combine(hn::LowerHalf(half, v), hn::UpperHalf(half, v)), combine);
  }
}

/// to[r] = combine over all lanes of rows[r], for eight rows: a third of the instructions that one
/// row after the other takes.
template <class D, typename Combine>
HWY_INLINE void combine_lanes(D d, const hn::Vec<D>* rows, const Combine& combine,
                              hn::TFromD<D>* to) {
  if constexpr (sizeof(hn::TFromD<D>) == 4 && hn::MaxLanes(d) >= 4) {
    const hn::CappedTag<hn::TFromD<D>, 4> block;
    for (int64_t r = 0; r < kRowsTogether; r += 4) {
      hn::StoreU(combine_blocks(d, combine_in_blocks(d, rows + r, combine), combine), block,
                 to + r);
    }
  } else {
    HWY_ALIGN hn::TFromD<D> lanes[hn::MaxLanes(d)];
    for (int64_t r = 0; r < kRowsTogether; ++r) {
      hn::Store(rows[r], d, lanes);
      to[r] = lanes[0];
      for (size_t n = 1; n < hn::MaxLanes(d); ++n) {
        const hn::CappedTag<hn::TFromD<D>, 1> one;
        to[r] = hn::GetLane(combine(hn::Set(one, to[r]), hn::Set(one, lanes[n])));
      }
    }
  }
}

/// combine_lanes by addition, and by the greater of two.
template <class D>
HWY_INLINE void sums_of_lanes(D d, const hn::Vec<D>* rows, hn::TFromD<D>* to) {
  combine_lanes(
      d, rows, [](auto a, auto b) { return hn::Add(a, b); }, to);
}
template <class D>
HWY_INLINE void largest_of_lanes(D d, const hn::Vec<D>* rows, hn::TFromD<D>* to) {
  combine_lanes(
      d, rows, [](auto a, auto b) { return hn::Max(a, b); }, to);
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

/// The dot product of two rows, still to be summed over lanes.
template <typename T>
HWY_INLINE hn::Vec<hn::ScalableTag<T>> products_of_rows(int64_t count, const T* a, const T* b) {
  const hn::ScalableTag<T> d;
  auto sum = hn::Zero(d);
  for (int64_t c = 0; c < count; c += hn::Lanes(d))
    sum = hn::MulAdd(hn::LoadU(d, a + c), hn::LoadU(d, b + c), sum);
  return sum;
}
template <typename T>
HWY_INLINE T dot_of_rows(int64_t count, const T* a, const T* b) {
  return sum_of_lanes(hn::ScalableTag<T>(), products_of_rows(count, a, b));
}

}  // namespace fmmformer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // FMMFORMER_ROWS_INL_H_
