// SPDX-License-Identifier: Apache-2.0
// The last numbers of a row, where they do not fill a vector.
#if defined(FMMFORMER_LOAD_FIRST_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FMMFORMER_LOAD_FIRST_INL_H_
#undef FMMFORMER_LOAD_FIRST_INL_H_
#else
#define FMMFORMER_LOAD_FIRST_INL_H_
#endif

#include <algorithm>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fmmformer::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// `count` numbers, fewer than a vector has, and zeros after them. Nothing beyond is touched, and
/// `from` need not be aligned: MaskedLoad alone promises neither on every target.
template <class D>
HWY_INLINE hn::Vec<D> load_first(D d, const hn::TFromD<D>* from, size_t count) {
#if HWY_MEM_OPS_MIGHT_FAULT
  HWY_ALIGN hn::TFromD<D> numbers[HWY_MAX_BYTES / sizeof(hn::TFromD<D>)] = {};
  std::copy_n(from, count, numbers);
  return hn::Load(d, numbers);
#else
  return hn::MaskedLoad(hn::FirstN(d, count), d, from);
#endif
}

}  // namespace fmmformer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
