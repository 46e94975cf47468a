// SPDX-License-Identifier: Apache-2.0
// Tiles of q or k to tiles of feature rows (the r maps side by side), and gradients back.
#if defined(FMMFORMER_FEATURES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FMMFORMER_FEATURES_INL_H_
#undef FMMFORMER_FEATURES_INL_H_
#else
#define FMMFORMER_FEATURES_INL_H_
#endif

#include "attention/fmm/cpu/rows-inl.h"
#include "attention/fmm/cpu/simd_math-inl.h"
#include "attention/fmm/cpu/sweep.h"
#include "attention/fmm/cpu/tile_io-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fmmformer::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename Real>
HWY_INLINE bool any_map_needs_exp(const SweepArgs<Real>& args) {
  for (int l = 0; l < args.maps; ++l) {
    if (needs_exp(args.feature_maps[l])) return true;
  }
  return false;
}

// Divides each map's part of a feature row by its sum; the reciprocals (0 for a sum of 0) are kept
// for backward.
template <typename Real>
HWY_INLINE void make_unit_features(int maps, int64_t width, Real* row, Real* reciprocals) {
  const hn::ScalableTag<Real> d;
  for (int l = 0; l < maps; ++l, row += width) {
    auto sums = hn::Zero(d);
    for (int64_t c = 0; c < width; c += hn::Lanes(d)) sums = hn::Add(sums, hn::Load(d, row + c));
    const Real sum = sum_of_lanes(d, sums);
    reciprocals[l] = sum == Real(0) ? Real(0) : Real(1) / sum;
    const auto scale = hn::Set(d, reciprocals[l]);
    for (int64_t c = 0; c < width; c += hn::Lanes(d))
      hn::Store(hn::Mul(hn::Load(d, row + c), scale), d, row + c);
  }
}

/// A tile of feature rows with what backward needs again.
template <typename Real>
struct FeatureTile {
  Real* values;  // [kChunk, R]: values[i][l * padded(D) + c] = f_l(x_i)[c]; rows that are not live
                 // are zeros
  Real* exps;    // [kChunk, padded D]: exp(-|x|), where a map needs it
  Real* reciprocals;  // [kChunk, maps]: of sum_d phi, where features are unit features

  FeatureTile(const SweepArgs<Real>& args, Arena& arena)
      : values(arena.take<Real>(kChunk * feature_width(args))),
        exps(arena.take<Real>(kChunk * padded(args.head_dim))),
        reciprocals(arena.take<Real>(kChunk * kMaxFeatureMaps)) {}
};

/// The features of the rows [begin, begin + count) that `tile` holds.
template <typename Real>
HWY_NOINLINE void feature_rows(const SweepArgs<Real>& args, const Rows& rows, int64_t begin,
                               int64_t count, const Real* tile, const NextRows& next,
                               FeatureTile<Real>& result) {
  const hn::ScalableTag<Real> d;
  const VectorOps<decltype(d)> ops{d};
  constexpr int64_t kLanes = hn::MaxLanes(d);
  const int64_t width = padded(args.head_dim), feature_stride = feature_width(args);
  const bool with_exp = any_map_needs_exp(args);
  for (int64_t i = 0; i < count; ++i) {
    const Real* x_row = tile + i * width;
    Real* features = result.values + i * feature_stride;
    Real* exps = result.exps + i * width;
    next.ask_for(i);
    if (!rows.live(begin + i)) {
      zero_row(features, 0, feature_stride);
      zero_row(exps, 0, width);
      zero_row(result.reciprocals, i * args.maps, (i + 1) * args.maps);
      continue;
    }
    for (int64_t c = 0; c < width; c += kLanes) {
      const auto x = hn::Load(d, x_row + c);
      const auto e = with_exp ? exp_minus_abs(d, x) : hn::Zero(d);
      hn::Store(e, d, exps + c);
      const int64_t real_columns =
          args.head_dim - c;  // the padding must stay 0: phi(0) need not be
      for (int l = 0; l < args.maps; ++l) {
        auto value = feature_value(ops, args.feature_maps[l], x, e);
        if (real_columns < kLanes) {
          value = hn::IfThenElseZero(hn::FirstN(d, real_columns > 0 ? real_columns : 0), value);
        }
        hn::Store(value, d, features + l * width + c);
      }
    }
    if (args.unit_features)
      make_unit_features(args.maps, width, features, result.reciprocals + i * args.maps);
  }
}

/// Turns the gradient of one row of unit features into that of phi: (df - <df, f>) / sum phi.
template <typename Real>
HWY_INLINE void unit_feature_gradient(int maps, int64_t width, const Real* features,
                                      const Real* reciprocals, Real* gradient) {
  const hn::ScalableTag<Real> d;
  for (int l = 0; l < maps; ++l, features += width, gradient += width) {
    const auto dot = hn::Set(d, dot_of_rows(width, gradient, features));
    const auto scale = hn::Set(d, reciprocals[l]);
    for (int64_t c = 0; c < width; c += hn::Lanes(d)) {
      hn::Store(hn::Mul(hn::Sub(hn::Load(d, gradient + c), dot), scale), d, gradient + c);
    }
  }
}

/// dx[i] = sum_l phi_l'(x[i]) dfeature[i][l]: overwrites dx; destroys the gradient tile.
template <typename Real>
HWY_NOINLINE void feature_rows_backward(const SweepArgs<Real>& args, int64_t count,
                                        const Real* tile, const FeatureTile<Real>& features,
                                        Real* gradient, Real* dx) {
  const hn::ScalableTag<Real> d;
  const VectorOps<decltype(d)> ops{d};
  const int64_t width = padded(args.head_dim), feature_stride = feature_width(args);
  const Real* exps = features.exps;
  for (int64_t i = 0; i < count; ++i) {
    if (args.unit_features) {
      unit_feature_gradient(args.maps, width, features.values + i * feature_stride,
                            features.reciprocals + i * args.maps, gradient);
    }
    for (int64_t c = 0; c < width; c += hn::Lanes(d)) {
      const auto x = hn::Load(d, tile + c), e = hn::Load(d, exps + c);
      auto sum = hn::Zero(d);
      for (int l = 0; l < args.maps; ++l) {
        const auto slope = feature_slope(ops, args.feature_maps[l], x, e);
        sum = hn::MulAdd(slope, hn::Load(d, gradient + l * width + c), sum);
      }
      hn::Store(sum, d, dx + c);
    }
    tile += width, exps += width, dx += width, gradient += feature_stride;
  }
}

}  // namespace fmmformer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // FMMFORMER_FEATURES_INL_H_
