// SPDX-License-Identifier: Apache-2.0
// Near-field dropout factors (0 or 1 / (1 - p)) for tiles of the band, many Philox counters at a
// time; philox.h says which bits belong to which probability.
#if defined(FMMFORMER_DROPOUT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FMMFORMER_DROPOUT_INL_H_
#undef FMMFORMER_DROPOUT_INL_H_
#else
#define FMMFORMER_DROPOUT_INL_H_
#endif

#include <cstring>

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

// Of the blocks with counters (group, query, head, 0) the words of one query of two, eight apart:
// those of its keys from a multiple of sixteen on, and of the eight after these.
template <class D>
HWY_INLINE void philox_words(D d, const Dropout& dropout, hn::Vec<D> group, uint32_t query,
                             uint32_t* HWY_RESTRICT words, uint32_t* HWY_RESTRICT next_words) {
  auto c0 = group, c1 = hn::Set(d, query / 16 * 8 + query % 8), c2 = hn::Set(d, dropout.head),
       c3 = hn::Zero(d);
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
  const bool upper = query / 8 % 2 != 0;
  hn::Store(upper ? c2 : c0, d, words);
  hn::Store(upper ? c3 : c1, d, next_words);
}

// Rows are multiplied in whole vectors: what overhangs is 0 then, not whatever the scratch held
// before.
template <typename Real>
HWY_INLINE void factors_from_bits(const Dropout& dropout, const uint16_t* bits, int64_t count,
                                  Real* factors) {
  const auto threshold = static_cast<uint16_t>(near_dropout_threshold(dropout.probability));
  const auto kept = static_cast<Real>(near_dropout_factor(dropout.probability));
  for (int64_t c = 0; c < count; ++c) factors[c] = (bits[c] & 0x7fff) < threshold ? Real(0) : kept;
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
  // Sixteen keys are four blocks, and of each two words of two keys' bits.
  constexpr int64_t kLanes = hn::MaxLanes(d), kBlocks = 4, kEight = 8;
  static_assert(kLanes % kBlocks == 0);
  HWY_ALIGN uint32_t words[kLanes], next_words[kLanes];
  uint16_t bits[kDropoutColumns + 16 + kLanes * 4];
  const int64_t begin = first_key & ~int64_t{15};
  for (int64_t key = begin; key < first_key + count; key += kLanes * 4) {
    philox_words(d, dropout, hn::Iota(d, static_cast<uint32_t>(key / 4)),
                 static_cast<uint32_t>(query), words, next_words);
    for (int64_t group = 0; group < kLanes; group += kBlocks) {
      uint16_t* to = bits + (key - begin) + group * 4;
      std::memcpy(to, words + group, kEight * sizeof(uint16_t));
      std::memcpy(to + kEight, next_words + group, kEight * sizeof(uint16_t));
    }
  }
  factors_from_bits(dropout, bits + (first_key - begin), count, factors);
}

}  // namespace fmmformer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // FMMFORMER_DROPOUT_INL_H_
