// SPDX-License-Identifier: Apache-2.0
// Exponentials and the arithmetic that feature_map.inc asks for, on SIMD vectors.
#if defined(FMMFORMER_SIMD_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FMMFORMER_SIMD_MATH_INL_H_
#undef FMMFORMER_SIMD_MATH_INL_H_
#else
#define FMMFORMER_SIMD_MATH_INL_H_
#endif

#include "attention/feature_map.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fmmformer::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// exp(x) = p 2^n with n = round(x / ln 2): n, and p times 2^n, for x between -87.3 and 0 or a
/// little above.
template <class D>
struct PowerOfTwo {
#if HWY_TARGET == HWY_AVX3
  HWY_INLINE PowerOfTwo(D d, hn::Vec<D> x) : n(hn::Round(hn::Mul(x, hn::Set(d, kLog2E)))) {}
  HWY_INLINE hn::Vec<D> times(D, hn::Vec<D> p) const {
    static_assert(hn::MaxLanes(D()) == 16, "whole vectors only");
    return hn::Vec<D>{_mm512_scalef_ps(p.raw, n.raw)};
  }
#else
  // 1.5 2^23 + 127 has no room for a fraction: adding it rounds, and leaves n + 127 in the low
  // bits, where a conversion would take four instructions and care for numbers that never come.
  static constexpr float kShift = 12582912.0f + 127.0f;
  HWY_INLINE PowerOfTwo(D d, hn::Vec<D> x)
      : shifted(hn::MulAdd(x, hn::Set(d, kLog2E), hn::Set(d, kShift))),
        n(hn::Sub(shifted, hn::Set(d, kShift))) {}
  HWY_INLINE hn::Vec<D> times(D d, hn::Vec<D> p) const {
    const hn::RebindToUnsigned<D> du;
    return hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(du, shifted))));
  }
  hn::Vec<D> shifted;
#endif
  static constexpr float kLog2E = 1.44269504088896341f;
  hn::Vec<D> n;
};

/// exp(x) for x <= 0 (a little above is fine); relative error below 1e-7, 0 below -87.3. NaN stays
/// NaN.
template <class D>
requires(sizeof(hn::TFromD<D>) == 4) HWY_INLINE hn::Vec<D> exp_nonpositive(D d, hn::Vec<D> x) {
  const PowerOfTwo<D> power(d, x);
  // x - n ln 2 in two steps: the first product is exact because the constant has few bits.
  auto r = hn::NegMulAdd(power.n, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(power.n, hn::Set(d, -2.12194440e-4f), r);
  // exp(r) on |r| <= ln 2 / 2, minimax of degree 6 with the first two coefficients exact
  auto p = hn::MulAdd(hn::Set(d, 1.3814541e-3f), r, hn::Set(d, 8.3687454e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.1668389e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.6666521e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.9999994e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.3f)), power.times(d, p));
}

template <class D>
requires(sizeof(hn::TFromD<D>) == 8) HWY_INLINE hn::Vec<D> exp_nonpositive(D d, hn::Vec<D> x) {
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -708.0)), hn::Exp(d, x));
}

/// exp(-|x|), what all feature maps are made of.
template <class D>
HWY_INLINE hn::Vec<D> exp_minus_abs(D d, hn::Vec<D> x) {
  return exp_nonpositive(d, hn::Or(x, hn::SignBit(d)));
}

#include "attention/feature_map.inc"

/// The Ops of feature_map.inc for vectors.
template <class D>
struct VectorOps {
  using V = hn::Vec<D>;
  using T = hn::TFromD<D>;
  D d;
  HWY_INLINE V constant(double value) const { return hn::Set(d, static_cast<T>(value)); }
  HWY_INLINE V add(V a, V b) const { return hn::Add(a, b); }
  HWY_INLINE V sub(V a, V b) const { return hn::Sub(a, b); }
  HWY_INLINE V mul(V a, V b) const { return hn::Mul(a, b); }
  HWY_INLINE V div(V a, V b) const { return hn::Div(a, b); }
  HWY_INLINE V max0(V x) const {
    return hn::IfThenZeroElse(hn::Lt(x, hn::Zero(d)), x);
  }  // keeps NaN
  HWY_INLINE V select_positive(V x, V a, V b) const {
    return hn::IfThenElse(hn::Gt(x, hn::Zero(d)), a, b);
  }
  HWY_INLINE V select_negative(V x, V a, V b) const {
    return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), a, b);
  }
  HWY_INLINE V log1p(V x) const { return hn::Log1p(d, x); }
};

}  // namespace fmmformer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // FMMFORMER_SIMD_MATH_INL_H_
