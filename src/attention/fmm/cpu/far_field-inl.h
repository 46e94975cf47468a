// SPDX-License-Identifier: Apache-2.0
// What the sweeps share about the far field: normalisers and weights, row by row.
#if defined(FMMFORMER_FAR_FIELD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FMMFORMER_FAR_FIELD_INL_H_
#undef FMMFORMER_FAR_FIELD_INL_H_
#else
#define FMMFORMER_FAR_FIELD_INL_H_
#endif

#include <algorithm>
#include <cmath>

#include "attention/cpu/features-inl.h"
#include "attention/cpu/products-inl.h"
#include "attention/cpu/rows-inl.h"
#include "attention/cpu/tile_io-inl.h"
#include "attention/fmm/cpu/sweep.h"

HWY_BEFORE_NAMESPACE();
namespace fmmformer::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// A run of neighbouring feature columns that share one set of per-channel weights. Weights that
/// are uniform over channels are folded into the query rows instead, and all maps are one group:
/// one product does them all.
template <typename Real>
struct MapGroup {
  int64_t begin, width;  // feature columns
  const Real* weight;    // [value_dim], or none
};

template <typename Real>
HWY_INLINE int group_count(const SweepArgs<Real>& args) {
  return args.uniform_weights ? (args.maps > 0 ? 1 : 0) : args.maps;
}

template <typename Real>
HWY_INLINE MapGroup<Real> group_of(const SweepArgs<Real>& args, int64_t head, int group) {
  if (args.uniform_weights) return {0, feature_width(args), nullptr};
  const int64_t width = padded(args.head_dim);
  return {group * width, width, args.far_weight + (group * args.heads + head) * args.value_dim};
}

/// to[i] = weight * from[i], channel by channel.
template <typename Real>
HWY_INLINE void weigh_rows(int64_t count, int64_t value_dim, const Real* weight, const Real* from,
                           Real* to) {
  const int64_t stride = padded(value_dim);
  for (int64_t i = 0; i < count; ++i, from += stride, to += stride) {
    for (int64_t e = 0; e < value_dim; ++e) to[e] = weight[e] * from[e];
    for (int64_t e = value_dim; e < stride; ++e) to[e] = Real(0);
  }
}

template <typename Real>
HWY_INLINE Real* normalisers_of(const SweepArgs<Real>& args, const Rows& rows, int map) {
  return args.normalisers + ((rows.batch * args.heads + rows.head) * args.maps + map) * args.length;
}
template <typename Real>
HWY_INLINE Real* dots_of(const SweepArgs<Real>& args, const Rows& rows, int map) {
  return args.row_dots + ((rows.batch * args.heads + rows.head) * args.maps + map) * args.length;
}

template <typename Real>
HWY_INLINE bool has_row_sums(const SweepArgs<Real>& args) {
  return args.normaliser == Normaliser::kRowSum;
}

template <typename Real>
HWY_INLINE Real constant_normaliser(const SweepArgs<Real>& args) {
  return args.normaliser == Normaliser::kInvSqrtLength ? std::sqrt(static_cast<Real>(args.length))
                                                       : Real(1);
}

template <typename Real>
HWY_INLINE Real normaliser_from_sum(const SweepArgs<Real>& args, int map, Real sum) {
  if (!is_signed(args.feature_maps[map])) return sum + args.eps;
  return std::abs(sum) >= args.eps ? sum : std::copysign(args.eps, sum);
}

/// Whether a gradient flows through the normaliser of every row: none does through a constant, nor
/// through the guard of a signed map.
template <typename Real>
HWY_INLINE bool every_normaliser_has_gradient(const SweepArgs<Real>& args, int map) {
  return has_row_sums(args) && !is_signed(args.feature_maps[map]);
}
/// ... and in one row.
template <typename Real>
HWY_INLINE bool normaliser_has_gradient(const SweepArgs<Real>& args, int map, Real normaliser) {
  return has_row_sums(args) &&
         (!is_signed(args.feature_maps[map]) || std::abs(normaliser) > args.eps);
}

/// Copies a number for each of the kRowsTogether rows from `begin` on, as far as these exist.
template <typename Real>
HWY_INLINE void copy_existing_rows(const SweepArgs<Real>& args, int64_t begin, const Real* from,
                                   Real* to) {
  if (begin + kRowsTogether <= args.length) {
    std::copy_n(from, kRowsTogether, to);  // of a size that the compiler knows: no call
  } else {
    for (int64_t i = 0; begin + i < args.length; ++i) to[i] = from[i];
  }
}

/// What query rows of a map are multiplied by: far_scale / norm, times the weight where that is one
/// number; 0 for rows that are not live. For kRowsTogether rows from `begin` on.
template <typename Real>
HWY_INLINE void query_factors(const SweepArgs<Real>& args, const Rows& rows, int64_t begin, int map,
                              const Real* normalisers, Real* factors) {
  const Real weight = args.uniform_weights
                          ? args.far_weight[(map * args.heads + rows.head) * args.value_dim]
                          : Real(1);
  const Real scale = weight * args.far_scale;
  for (int64_t i = 0; i < kRowsTogether; ++i) factors[i] = scale / normalisers[i];
  if (rows.all_live(begin, kRowsTogether)) return;
  for (int64_t i = 0; i < kRowsTogether; ++i) {
    if (!rows.live(begin + i)) factors[i] = Real(0);
  }
}

/// The normalisers that forward kept for kRowsTogether rows, 1 for rows that do not exist.
template <typename Real>
HWY_INLINE void kept_normalisers(const SweepArgs<Real>& args, const Rows& rows, int64_t begin,
                                 int map, Real* normalisers) {
  std::fill_n(normalisers, kRowsTogether, has_row_sums(args) ? Real(1) : constant_normaliser(args));
  if (has_row_sums(args))
    copy_existing_rows(args, begin, normalisers_of(args, rows, map) + begin, normalisers);
}

/// scaled[i] = query factor * features[i], from normalisers that forward kept; may be done in
/// place.
template <typename Real>
HWY_NOINLINE void scale_queries(const SweepArgs<Real>& args, const Rows& rows, int64_t begin,
                                int64_t count, const Real* features, Real* scaled) {
  const int64_t width = padded(args.head_dim), stride = feature_width(args);
  Real normalisers[kRowsTogether], factors[kRowsTogether];
  for (int64_t first = 0; first < count; first += kRowsTogether) {
    for (int l = 0; l < args.maps; ++l) {
      kept_normalisers(args, rows, begin + first, l, normalisers);
      query_factors(args, rows, begin + first, l, normalisers, factors);
      for (int64_t i = 0; i < kRowsTogether; ++i) {
        const int64_t at = (first + i) * stride + l * width;
        scale_row(width, factors[i], features + at, scaled + at);
      }
    }
  }
}

}  // namespace fmmformer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // FMMFORMER_FAR_FIELD_INL_H_
