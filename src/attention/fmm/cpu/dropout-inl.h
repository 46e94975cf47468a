// SPDX-License-Identifier: Apache-2.0
// Near-field dropout factors (0 or 1 / (1 - p)) for tiles of the band, many Philox counters at a
// time; philox.h says which word belongs to which probability.
#if defined(FMMFORMER_DROPOUT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FMMFORMER_DROPOUT_INL_H_
#undef FMMFORMER_DROPOUT_INL_H_
#else
#define FMMFORMER_DROPOUT_INL_H_
#endif

#include "attention/philox.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fmmformer::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

struct Dropout {
  uint64_t seed = 0;
  uint32_t head = 0;  // b * H + h
  double probability = 0;
};

template <class D>
HWY_INLINE void multiply_wide(D d, hn::Vec<D> a, uint32_t factor, hn::Vec<D>& low,
                              hn::Vec<D>& high) {
  const hn::RepartitionToWide<D> wide;
  const auto b = hn::Set(d, factor);
  const auto even = hn::MulEven(a, b);
  const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, a))), b);
  low = hn::Mul(a, b);
  high = hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
}

// The four words of the blocks with counters (group, query, head, 0), one block after the other.
template <class D>
HWY_INLINE void philox_blocks(D d, const Dropout& dropout, hn::Vec<D> group, uint32_t query,
                              uint32_t* words) {
  auto c0 = group, c1 = hn::Set(d, query), c2 = hn::Set(d, dropout.head), c3 = hn::Zero(d);
  auto key0 = static_cast<uint32_t>(dropout.seed), key1 = static_cast<uint32_t>(dropout.seed >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    auto low0 = c0, high0 = c0, low1 = c2, high1 = c2;
    multiply_wide(d, c0, kPhiloxMultiplier0, low0, high0);
    multiply_wide(d, c2, kPhiloxMultiplier1, low1, high1);
    c0 = hn::Xor(hn::Xor(high1, c1), hn::Set(d, key0));
    c2 = hn::Xor(hn::Xor(high0, c3), hn::Set(d, key1));
    c1 = low1, c3 = low0;
    key0 += kPhiloxKeyStep0, key1 += kPhiloxKeyStep1;
  }
  hn::StoreInterleaved4(c0, c1, c2, c3, d, words);
}

// Rows are multiplied in whole vectors: what overhangs is 0 then, not whatever the scratch held
// before.
template <typename Real>
HWY_INLINE void factors_from_words(const Dropout& dropout, const uint32_t* words, int64_t count,
                                   Real* factors) {
  const uint32_t threshold = dropout_threshold(dropout.probability);
  const auto kept = static_cast<Real>(1.0 / (1.0 - dropout.probability));
  for (int64_t c = 0; c < count; ++c) factors[c] = words[c] < threshold ? Real(0) : kept;
  const int64_t lanes = hn::Lanes(hn::ScalableTag<Real>());
  for (int64_t c = count; c % lanes != 0; ++c) factors[c] = Real(0);
}

inline constexpr int64_t kDropoutColumns =
    192;  // at most this many columns at a time; see kNearBlock

/// factors[c] of (query, first_key + c), c < count.
template <typename Real>
HWY_NOINLINE void dropout_for_query(const Dropout& dropout, int64_t query, int64_t first_key,
                                    int64_t count, Real* factors) {
  const hn::ScalableTag<uint32_t> d;
  constexpr int64_t kLanes = hn::MaxLanes(d);
  HWY_ALIGN uint32_t words[kDropoutColumns + 8 * kLanes];
  const int64_t first_group = first_key >> 2, groups = ((first_key + count + 3) >> 2) - first_group;
  for (int64_t g = 0; g < groups; g += kLanes) {
    philox_blocks(d, dropout, hn::Iota(d, static_cast<uint32_t>(first_group + g)),
                  static_cast<uint32_t>(query), words + 4 * g);
  }
  factors_from_words(dropout, words + (first_key - 4 * first_group), count, factors);
}

}  // namespace fmmformer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // FMMFORMER_DROPOUT_INL_H_
