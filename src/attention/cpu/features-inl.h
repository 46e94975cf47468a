// SPDX-License-Identifier: Apache-2.0
// Tiles of q or k to tiles of feature rows (the r maps side by side), and gradients back.
#if defined(FMMFORMER_FEATURES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FMMFORMER_FEATURES_INL_H_
#undef FMMFORMER_FEATURES_INL_H_
#else
#define FMMFORMER_FEATURES_INL_H_
#endif

#include <algorithm>
#include <iterator>
#include <type_traits>

#include "attention/cpu/arena.h"
#include "attention/cpu/rows-inl.h"
#include "attention/cpu/simd_math-inl.h"
#include "attention/cpu/tile_io-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fmmformer::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE bool any_map_needs_exp(const FeatureLayout& layout) {
  for (int l = 0; l < layout.maps; ++l) {
    if (needs_exp(layout.feature_maps[l])) return true;
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
  Real* reciprocals;       // [kChunk, maps]: of sum_d phi, where features are unit features
  bool keeps_exps = true;  // whether anybody wants `exps`

  FeatureTile(const FeatureLayout& layout, Arena& arena)
      : values(arena.take<Real>(kChunk * feature_width(layout))),
        exps(arena.take<Real>(kChunk * padded(layout.head_dim))),
        reciprocals(arena.take<Real>(kChunk * kMaxFeatureMaps)) {}
};

/// Calls use(constant) with the map as a compile-time constant: the question is asked once a tile.
template <typename Use>
HWY_INLINE void with_map(FeatureMap map, const Use& use) {
  switch (map) {
    case FeatureMap::kElu:
      return use(std::integral_constant<FeatureMap, FeatureMap::kElu>());
    case FeatureMap::kEluFlip:
      return use(std::integral_constant<FeatureMap, FeatureMap::kEluFlip>());
    case FeatureMap::kTanh1:
      return use(std::integral_constant<FeatureMap, FeatureMap::kTanh1>());
    case FeatureMap::kTanh:
      return use(std::integral_constant<FeatureMap, FeatureMap::kTanh>());
    case FeatureMap::kRelu:
      return use(std::integral_constant<FeatureMap, FeatureMap::kRelu>());
    case FeatureMap::kSoftplus:
      return use(std::integral_constant<FeatureMap, FeatureMap::kSoftplus>());
    case FeatureMap::kIdentity:
      return use(std::integral_constant<FeatureMap, FeatureMap::kIdentity>());
  }
}

// The padding must stay 0: phi(0) need not be.
template <typename Real>
HWY_INLINE void clear_padding(const FeatureLayout& layout, Real* row) {
  const int64_t width = padded(layout.head_dim);
  if (layout.head_dim == width) return;
  for (int l = 0; l < layout.maps; ++l) zero_row(row + l * width, layout.head_dim, width);
}

// All maps of a tile in one pass: an exponential serves them while it is in a register.
template <FeatureMap... kMaps, typename Real>
HWY_INLINE void map_together(const FeatureLayout& layout, int64_t count, const Real* tile,
                             NextRows& next, FeatureTile<Real>& result) {
  const hn::ScalableTag<Real> d;
  const VectorOps<decltype(d)> ops{d};
  constexpr int64_t kLanes = hn::MaxLanes(d);
  const int64_t width = padded(layout.head_dim), stride = feature_width(layout);
  Real *exps = result.exps, *values = result.values;
  const bool keeps_exps = result.keeps_exps;
  for (int64_t i = 0; i < count; ++i, values += stride) {
    next.ask();
    for (int64_t c = 0; c < width; c += kLanes, tile += kLanes, exps += kLanes) {
      const auto x = hn::Load(d, tile), e = exp_minus_abs(d, x);
      if (keeps_exps) hn::Store(e, d, exps);
      Real* to = values + c;
      ((hn::Store(feature_value(ops, kMaps, x, e), d, to), to += width), ...);
    }
    clear_padding(layout, values);
  }
}

// One map of all rows of a tile.
template <FeatureMap kMap, typename Real>
HWY_INLINE void map_rows(const FeatureLayout& layout, int64_t count, const Real* tile,
                         const Real* exps, Real* values) {
  const hn::ScalableTag<Real> d;
  const VectorOps<decltype(d)> ops{d};
  constexpr int64_t kLanes = hn::MaxLanes(d);
  const int64_t width = padded(layout.head_dim), stride = feature_width(layout);
  for (int64_t i = 0; i < count; ++i, values += stride) {
    for (int64_t c = 0; c < width; c += kLanes, tile += kLanes, exps += kLanes) {
      const auto value = feature_value(ops, kMap, hn::Load(d, tile), hn::Load(d, exps));
      hn::Store(value, d, values + c);
    }
  }
}

// Any list of maps, one after the other.
template <typename Real>
HWY_INLINE void map_in_turn(const FeatureLayout& layout, int64_t count, const Real* tile,
                            NextRows& next, FeatureTile<Real>& result) {
  const hn::ScalableTag<Real> d;
  const int64_t width = padded(layout.head_dim), stride = feature_width(layout);
  const bool with_exp = any_map_needs_exp(layout);
  for (int64_t i = 0; i < count; ++i) {
    next.ask();
    for (int64_t c = i * width; with_exp && c < (i + 1) * width; c += hn::Lanes(d))
      hn::Store(exp_minus_abs(d, hn::Load(d, tile + c)), d, result.exps + c);
  }
  for (int l = 0; l < layout.maps; ++l) {
    with_map(layout.feature_maps[l], [&](auto map) {
      map_rows<decltype(map)::value>(layout, count, tile, result.exps, result.values + l * width);
    });
  }
  for (int64_t i = 0; i < count; ++i) clear_padding(layout, result.values + i * stride);
}

template <FeatureMap... kMaps>
HWY_INLINE bool has_maps(const FeatureLayout& layout) {
  constexpr FeatureMap kWanted[] = {kMaps...};
  return layout.maps == sizeof...(kMaps) &&
         std::equal(std::begin(kWanted), std::end(kWanted), layout.feature_maps);
}

/// Calls use.operator()<maps...>() where the layout has one of the paper's three lists of maps.
template <typename Use>
HWY_INLINE bool with_maps_of_paper(const FeatureLayout& layout, const Use& use) {
  using enum FeatureMap;
  if (has_maps<kElu>(layout)) {
    use.template operator()<kElu>();
  } else if (has_maps<kElu, kEluFlip>(layout)) {
    use.template operator()<kElu, kEluFlip>();
  } else if (has_maps<kElu, kEluFlip, kTanh1>(layout)) {
    use.template operator()<kElu, kEluFlip, kTanh1>();
  } else {
    return false;
  }
  return true;
}

/// The features of the rows [begin, begin + count) that `tile` holds.
template <typename Real>
HWY_NOINLINE void feature_rows(const FeatureLayout& layout, const Rows& rows, int64_t begin,
                               int64_t count, const Real* tile, NextRows& next,
                               FeatureTile<Real>& result) {
  const int64_t width = padded(layout.head_dim), stride = feature_width(layout);
  const bool together = with_maps_of_paper(
      layout, [&]<FeatureMap... kMaps>() {
        map_together<kMaps...>(layout, count, tile, next, result);
      });
  if (!together) map_in_turn(layout, count, tile, next, result);
  if (layout.unit_features) {
    for (int64_t i = 0; i < count; ++i) {
      make_unit_features(layout.maps, width, result.values + i * stride,
                         result.reciprocals + i * layout.maps);
    }
  }
  if (rows.all_live(begin, count)) return;
  for (int64_t i = 0; i < count; ++i) {
    if (!rows.live(begin + i)) zero_row(result.values, i * stride, (i + 1) * stride);
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

// dx = sum_l phi_l'(x) gradient_l, all maps of a tile in one pass.
template <FeatureMap... kMaps, typename Real>
HWY_INLINE void map_backward_together(const FeatureLayout& layout, int64_t count, const Real* tile,
                                      const Real* exps, const Real* gradient, Real* dx) {
  const hn::ScalableTag<Real> d;
  const VectorOps<decltype(d)> ops{d};
  constexpr int64_t kLanes = hn::MaxLanes(d);
  const int64_t width = padded(layout.head_dim), stride = feature_width(layout);
  for (int64_t i = 0; i < count; ++i, gradient += stride) {
    for (int64_t c = 0; c < width; c += kLanes, tile += kLanes, exps += kLanes, dx += kLanes) {
      const auto x = hn::Load(d, tile), e = hn::Load(d, exps);
      const Real* from = gradient + c;
      auto sum = hn::Zero(d);
      ((sum = hn::MulAdd(feature_slope(ops, kMaps, x, e), hn::Load(d, from), sum), from += width),
       ...);
      hn::Store(sum, d, dx);
    }
  }
}

// dx (+)= phi'(x) gradient, for one map of all rows of a tile.
template <FeatureMap kMap, typename Real>
HWY_INLINE void map_rows_backward(const FeatureLayout& layout, int64_t count, const Real* tile,
                                  const Real* exps, const Real* gradient, bool first, Real* dx) {
  const hn::ScalableTag<Real> d;
  const VectorOps<decltype(d)> ops{d};
  constexpr int64_t kLanes = hn::MaxLanes(d);
  const int64_t width = padded(layout.head_dim), stride = feature_width(layout);
  for (int64_t i = 0; i < count; ++i, gradient += stride) {
    for (int64_t c = 0; c < width; c += kLanes, tile += kLanes, exps += kLanes, dx += kLanes) {
      const auto slope = feature_slope(ops, kMap, hn::Load(d, tile), hn::Load(d, exps));
      const auto before = first ? hn::Zero(d) : hn::Load(d, dx);
      hn::Store(hn::MulAdd(slope, hn::Load(d, gradient + c), before), d, dx);
    }
  }
}

/// dx[i] = sum_l phi_l'(x[i]) dfeature[i][l]: overwrites dx; destroys the gradient tile.
template <typename Real>
HWY_NOINLINE void feature_rows_backward(const FeatureLayout& layout, int64_t count,
                                        const Real* tile, const FeatureTile<Real>& features,
                                        Real* gradient, Real* dx) {
  const int64_t width = padded(layout.head_dim), stride = feature_width(layout);
  if (layout.unit_features) {
    for (int64_t i = 0; i < count; ++i) {
      unit_feature_gradient(layout.maps, width, features.values + i * stride,
                            features.reciprocals + i * layout.maps, gradient + i * stride);
    }
  }
  const bool together = with_maps_of_paper(
      layout, [&]<FeatureMap... kMaps>() {
        map_backward_together<kMaps...>(layout, count, tile, features.exps, gradient, dx);
      });
  if (together) return;
  for (int l = 0; l < layout.maps; ++l) {
    with_map(layout.feature_maps[l], [&](auto map) {
      map_rows_backward<decltype(map)::value>(layout, count, tile, features.exps,
                                              gradient + l * width, l == 0, dx);
    });
  }
}

}  // namespace fmmformer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // FMMFORMER_FEATURES_INL_H_
