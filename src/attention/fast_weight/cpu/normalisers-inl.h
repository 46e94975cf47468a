// SPDX-License-Identifier: Apache-2.0
// Everything about a token that comes from the running sum of keys: its two gates and its
// normaliser, row by row, and their gradients.
#if defined(FMMFORMER_FAST_WEIGHT_NORMALISERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FMMFORMER_FAST_WEIGHT_NORMALISERS_INL_H_
#undef FMMFORMER_FAST_WEIGHT_NORMALISERS_INL_H_
#else
#define FMMFORMER_FAST_WEIGHT_NORMALISERS_INL_H_
#endif

#include <cmath>

#include "attention/cpu/rows-inl.h"
#include "attention/cpu/tile_io-inl.h"
#include "attention/fast_weight/cpu/substitution-inl.h"
#include "attention/fast_weight/cpu/sweep.h"

HWY_BEFORE_NAMESPACE();
namespace fmmformer::fast_weight::HWY_NAMESPACE {
using namespace cpu::HWY_NAMESPACE;

template <typename Real>
HWY_INLINE Real divisor_from_sum(const SweepArgs<Real>& args, Real sum) {
  if (!is_signed(args.feature_maps[0])) return sum + args.eps;
  return std::abs(sum) > args.eps ? sum : std::copysign(args.eps, sum);
}

/// d divisor / d sum: none through the guard of a signed map.
template <typename Real>
HWY_INLINE Real divisor_slope(const SweepArgs<Real>& args, Real sum) {
  return !is_signed(args.feature_maps[0]) || std::abs(sum) > args.eps ? Real(1) : Real(0);
}

/// The first real token of a batch entry, whose key has nothing to be compared with; `length` if
/// there is none.
HWY_INLINE int64_t first_live_row(const Rows& rows) {
  int64_t row = 0;
  while (row < rows.length && !rows.live(row)) ++row;
  return row;
}

/// What the running sum says about a chunk: the gates, and for queries (where there are any) the
/// normalisers.
template <typename Real>
struct RowSums {
  Gates<Real> gates;
  Real overlap[kChunk];     // s = <x, key sum before it>; 1 for the first token
  Real normaliser[kChunk];  // what the query's output is divided by
  Real row_sum[kChunk];     // <y, key sum>
};

template <typename Real>
HWY_INLINE const Real* betas_of(const SweepArgs<Real>& args, const Rows& rows) {
  return args.beta + (rows.batch * args.heads + rows.head) * args.length;
}

/// write = beta s / n, erase = beta s / n^2, n = s + eps; without a key normaliser both are beta.
template <typename Real>
HWY_INLINE void set_gates(const SweepArgs<Real>& args, int64_t i, Real beta, RowSums<Real>& sums) {
  if (args.normaliser != FastWeightNormaliser::kOutputAndKey) {
    sums.gates.write[i] = sums.gates.erase[i] = beta;
    return;
  }
  const Real norm = divisor_from_sum(args, sums.overlap[i]);
  sums.gates.write[i] = beta * sums.overlap[i] / norm;
  sums.gates.erase[i] = sums.gates.write[i] / norm;
}

/// Adds the rows of `keys` to `key_sums`, and reads gates and (with `queries`) normalisers from it
/// on the way.
template <typename Real>
HWY_NOINLINE void sum_rows(const SweepArgs<Real>& args, const Rows& rows, int64_t first_live,
                           int64_t begin, int64_t count, const Real* keys, const Real* queries,
                           Real* key_sums, RowSums<Real>& sums) {
  const int64_t width = padded(args.head_dim);
  const Real* betas = betas_of(args, rows);
  const bool by_key = args.normaliser == FastWeightNormaliser::kOutputAndKey;
  const bool by_query = queries != nullptr && args.normaliser != FastWeightNormaliser::kNone;
  for (int64_t i = 0; i < count; ++i, keys += width) {
    const bool live = rows.live(begin + i);
    sums.overlap[i] =
        by_key && live && begin + i > first_live ? dot_of_rows(width, keys, key_sums) : Real(1);
    set_gates(args, i, live ? betas[begin + i] : Real(0), sums);
    add_row(width, keys, key_sums);
    sums.normaliser[i] = Real(1);
    if (by_query && live) {
      sums.row_sum[i] = dot_of_rows(width, queries + i * width, key_sums);
      sums.normaliser[i] = divisor_from_sum(args, sums.row_sum[i]);
    }
  }
}

/// scaled_i = far_scale / norm_i * query_i; may be done in place.
template <typename Real>
HWY_INLINE void scale_queries(const SweepArgs<Real>& args, int64_t count, const RowSums<Real>& sums,
                              const Real* queries, Real* scaled) {
  const int64_t width = padded(args.head_dim);
  for (int64_t i = 0; i < count; ++i)
    scale_row(width, args.far_scale / sums.normaliser[i], queries + i * width, scaled + i * width);
}

/// d beta of one token from the gradients of its two gates; `overlap_gradient` is that of s.
template <typename Real>
HWY_INLINE Real gates_backward(const SweepArgs<Real>& args, Real beta, Real overlap, bool first,
                               Real write_gradient, Real erase_gradient, Real& overlap_gradient) {
  overlap_gradient = 0;
  if (args.normaliser != FastWeightNormaliser::kOutputAndKey)
    return write_gradient + erase_gradient;
  const Real norm = divisor_from_sum(args, overlap), slope = divisor_slope(args, overlap);
  const Real share = overlap / norm;
  if (!first) {
    overlap_gradient =
        beta *
        (write_gradient * (1 - share * slope) + erase_gradient * (1 - 2 * share * slope) / norm) /
        norm;
  }
  return share * (write_gradient + erase_gradient / norm);
}

}  // namespace fmmformer::fast_weight::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // FMMFORMER_FAST_WEIGHT_NORMALISERS_INL_H_
