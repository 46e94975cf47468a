// SPDX-License-Identifier: Apache-2.0
// The near field: softmax inside the band, for a tile of queries (forward, dq) or of keys (dk, dv).
//
// A tile of rows meets the rows on the other side ("columns") in blocks of up to kNearBlock, eight
// rows at a time, so that only the columns inside those eight rows' band are computed. A narrow
// band fits one block; a wide one is worked off block by block, forward with the running maximum
// and sum of online softmax.
#if defined(FMMFORMER_NEAR_FIELD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FMMFORMER_NEAR_FIELD_INL_H_
#undef FMMFORMER_NEAR_FIELD_INL_H_
#else
#define FMMFORMER_NEAR_FIELD_INL_H_
#endif

#include <algorithm>
#include <cmath>

#include "attention/fmm/cpu/near_block-inl.h"
#include "attention/fmm/cpu/simd_math-inl.h"
#include "attention/fmm/cpu/sweep.h"
#include "attention/fmm/cpu/tile_io-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fmmformer::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// One row of scores to exp(score - peak), updating the row's running peak and total. Returns what
/// was accumulated under the old peak must be multiplied by.
template <typename Real>
HWY_INLINE Real soften_row(const RowBand<hn::ScalableTag<Real>>& band, int64_t count, Real scale,
                           Real* scores, Real& peak, Real& total) {
  const hn::ScalableTag<Real> d;
  const auto scales = hn::Set(d, scale), nothing = hn::Set(d, kNoScore<Real>);
  auto highest = nothing;
  for (int64_t c = 0; c < count; c += hn::Lanes(d)) {
    const auto score =
        hn::IfThenElse(band.sees(c), hn::Mul(hn::LoadU(d, scores + c), scales), nothing);
    hn::StoreU(score, d, scores + c);
    highest = hn::Max(highest, score);
  }
  const Real new_peak = std::max(peak, hn::GetLane(hn::MaxOfLanes(d, highest)));
  if (new_peak == kNoScore<Real>) {  // nothing seen so far
    fill_row(count, Real(0), scores);
    return Real(1);
  }
  const auto peaks = hn::Set(d, new_peak);
  auto sums = hn::Zero(d);
  for (int64_t c = 0; c < count; c += hn::Lanes(d)) {
    const auto weight = exp_nonpositive(d, hn::Sub(hn::LoadU(d, scores + c), peaks));
    hn::StoreU(weight, d, scores + c);
    sums = hn::Add(sums, weight);
  }
  const Real sum = sum_of_lanes(d, sums);
  Real correction = 1;
  if (peak != kNoScore<Real>) {  // not the first block: nothing was accumulated before that
    correction = hn::GetLane(exp_nonpositive(d, hn::Set(d, peak - new_peak)));
  }
  total = total * correction + sum;
  peak = new_peak;
  return correction;
}

template <typename Real>
HWY_INLINE void near_forward_rows(const SweepArgs<Real>& args, const Rows& rows, int64_t begin,
                                  int64_t r, const Real* q_tile, NearScratch<Real>& scratch) {
  const hn::ScalableTag<Real> d;
  const int64_t width = padded(args.head_dim), value_width = padded(args.value_dim);
  const NearBlock<Real>& block = scratch.block;
  const ColumnRange range = columns_seen(begin + r, args.left, args.right, block.begin, block.end);
  if (range.size() <= 0) return;
  product(kNearRows, range.size(), width, left_rows(q_tile + r * width, width),
          RowTile<const Real>{block.first_t + range.begin, kNearStride},
          RowTile<Real>{scratch.scores, kNearStride}, Into::kOverwrite);
  for (int64_t i = 0; i < kNearRows; ++i) {
    Real* row = scratch.scores + i * kNearStride;
    if (!rows.live(begin + r + i)) {
      fill_row(range.size(), Real(0), row);
      continue;
    }
    const RowBand<hn::ScalableTag<Real>> band(d, begin + r + i, args.left, args.right,
                                              block.begin + range.begin, block.live + range.begin);
    const Real correction = soften_row(band, range.size(), args.near_scale, row,
                                       scratch.peak[r + i], scratch.total[r + i]);
    if (correction != Real(1))
      scale_row(value_width, correction, scratch.accumulated + (r + i) * value_width,
                scratch.accumulated + (r + i) * value_width);
    if (args.near_dropout > 0) {
      dropout_for_query(dropout_of(args, rows), begin + r + i, block.begin + range.begin,
                        range.size(), scratch.factors);
      multiply_row(range.size(), scratch.factors, row);
    }
  }
  product(kNearRows, value_width, range.size(), left_rows(scratch.scores, kNearStride),
          RowTile<const Real>{block.second + range.begin * value_width, value_width},
          RowTile<Real>{scratch.accumulated + r * value_width, value_width}, Into::kAdd);
}

/// out_tile += near_weight * near, for the queries [begin, begin + count), count a multiple of 8;
/// writes log_sum_exp.
template <typename Real>
HWY_NOINLINE void near_forward(const SweepArgs<Real>& args, const Rows& rows, int64_t begin,
                               int64_t count, const Real* q_tile, Real* out_tile,
                               NearScratch<Real>& scratch) {
  const int64_t value_width = padded(args.value_dim);
  std::fill_n(scratch.peak, count, kNoScore<Real>);
  std::fill_n(scratch.total, count, Real(0));
  fill_row(count * value_width, Real(0), scratch.accumulated);
  const BlockRange all = all_columns_seen(begin, count, args.left, args.right, args.length);
  for (int64_t b = all.begin; b < all.end; b += kNearBlock) {
    load_block(args, rows, b, std::min(b + kNearBlock, all.end), args.k, args.v,
               /*transpose_second=*/false, scratch.block);
    for (int64_t r = 0; r < count; r += kNearRows)
      near_forward_rows(args, rows, begin, r, q_tile, scratch);
  }
  const Real* weight = args.near_weight + rows.head * args.value_dim;
  Real* lse = args.log_sum_exp + (rows.batch * args.heads + rows.head) * args.length;
  const hn::ScalableTag<Real> d;
  HWY_ALIGN Real logs[kChunk];
  for (int64_t i = 0; i < count; i += hn::Lanes(d)) {
    hn::Store(hn::Log(d, hn::LoadU(d, scratch.total + i)), d, logs + i);
  }
  for (int64_t i = 0; i < count && begin + i < args.length; ++i) {
    const bool live = rows.live(begin + i);
    lse[begin + i] = live ? scratch.peak[i] + logs[i] : Real(0);
    const Real reciprocal =
        live && scratch.total[i] != Real(0) ? Real(1) / scratch.total[i] : Real(0);
    Real* out = out_tile + i * value_width;
    const Real* near = scratch.accumulated + i * value_width;
    for (int64_t e = 0; e < args.value_dim; ++e) out[e] += weight[e] * reciprocal * near[e];
  }
}

// Probabilities of one row of a tile of queries, in place of the scores. Where nothing is seen,
// scores and gradients may hold anything, NaN included: both become 0.
template <typename Real>
HWY_INLINE void probabilities_of_row(const RowBand<hn::ScalableTag<Real>>& band, int64_t count,
                                     Real scale, Real log_sum_exp, Real* scores, Real* grads) {
  const hn::ScalableTag<Real> d;
  const auto scales = hn::Set(d, scale), lse = hn::Set(d, log_sum_exp);
  for (int64_t c = 0; c < count; c += hn::Lanes(d)) {
    const auto weight = exp_nonpositive(d, hn::MulSub(hn::LoadU(d, scores + c), scales, lse));
    const auto seen = band.sees(c);
    hn::StoreU(hn::IfThenElseZero(seen, weight), d, scores + c);
    hn::StoreU(hn::IfThenElseZero(seen, hn::LoadU(d, grads + c)), d, grads + c);
  }
}

// Probabilities and their gradients for eight queries against a block, in scratch.scores and
// scratch.score_grads.
template <typename Real>
HWY_INLINE void band_of_queries(const SweepArgs<Real>& args, const Rows& rows, int64_t begin,
                                int64_t r, const ColumnRange& range, const Real* q_tile,
                                const Real* grad_tile, NearScratch<Real>& scratch) {
  const hn::ScalableTag<Real> d;
  const int64_t width = padded(args.head_dim), value_width = padded(args.value_dim);
  const NearBlock<Real>& block = scratch.block;
  product(kNearRows, range.size(), width, left_rows(q_tile + r * width, width),
          RowTile<const Real>{block.first_t + range.begin, kNearStride},
          RowTile<Real>{scratch.scores, kNearStride}, Into::kOverwrite);
  product(kNearRows, range.size(), value_width, left_rows(grad_tile + r * value_width, value_width),
          RowTile<const Real>{block.second_t + range.begin, kNearStride},
          RowTile<Real>{scratch.score_grads, kNearStride}, Into::kOverwrite);
  const Real* lse = args.log_sum_exp + (rows.batch * args.heads + rows.head) * args.length;
  for (int64_t i = 0; i < kNearRows; ++i) {
    const int64_t query = begin + r + i;
    Real* row = scratch.scores + i * kNearStride;
    if (!rows.live(query)) {
      fill_row(range.size(), Real(0), row);
      continue;
    }
    const RowBand<hn::ScalableTag<Real>> band(d, query, args.left, args.right,
                                              block.begin + range.begin, block.live + range.begin);
    Real* grads = scratch.score_grads + i * kNearStride;
    probabilities_of_row(band, range.size(), args.near_scale, lse[query], row, grads);
    if (args.near_dropout > 0) {
      dropout_for_query(dropout_of(args, rows), query, block.begin + range.begin, range.size(),
                        scratch.factors);
      multiply_row(range.size(), scratch.factors, grads);
    }
  }
}

/// dq_tile += the near field's part, for the queries [begin, begin + count). grad_tile is dO, times
/// near_weight when that varies by channel; `weight` multiplies when it does not. dots[i] =
/// <grad_i, near_i> is written.
template <typename Real>
HWY_NOINLINE void near_backward_queries(const SweepArgs<Real>& args, const Rows& rows,
                                        int64_t begin, int64_t count, const Real* q_tile,
                                        const Real* grad_tile, Real weight, Real* dots,
                                        Real* dq_tile, NearScratch<Real>& scratch) {
  const hn::ScalableTag<Real> d;
  const int64_t width = padded(args.head_dim);
  std::fill_n(dots, count, Real(0));
  const BlockRange all = all_columns_seen(begin, count, args.left, args.right, args.length);
  // The gradient of a row needs the row's whole dot: a band of several blocks is gone through
  // twice.
  const bool one_block = all.end - all.begin <= kNearBlock;
  for (int pass = one_block ? 1 : 0; pass < 2; ++pass) {
    for (int64_t b = all.begin; b < all.end; b += kNearBlock) {
      load_block(args, rows, b, std::min(b + kNearBlock, all.end), args.k, args.v,
                 /*transpose_second=*/true, scratch.block);
      for (int64_t r = 0; r < count; r += kNearRows) {
        const ColumnRange range =
            columns_seen(begin + r, args.left, args.right, scratch.block.begin, scratch.block.end);
        if (range.size() <= 0) continue;
        band_of_queries(args, rows, begin, r, range, q_tile, grad_tile, scratch);
        for (int64_t i = 0; i < kNearRows; ++i) {
          Real* probability = scratch.scores + i * kNearStride;
          const Real* grad = scratch.score_grads + i * kNearStride;
          if (!rows.live(begin + r + i)) continue;
          if (one_block || pass == 0) dots[r + i] += dot_of_rows(range.size(), probability, grad);
          if (pass == 0) continue;
          const auto dot = hn::Set(d, dots[r + i]), factor = hn::Set(d, weight * args.near_scale);
          for (int64_t c = 0; c < range.size(); c += hn::Lanes(d)) {
            const auto centred = hn::Sub(hn::LoadU(d, grad + c), dot);
            hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, probability + c), factor), centred), d,
                       probability + c);
          }
        }
        if (pass == 0) continue;
        product(kNearRows, width, range.size(), left_rows(scratch.scores, kNearStride),
                RowTile<const Real>{scratch.block.first + range.begin * width, width},
                RowTile<Real>{dq_tile + r * width, width}, Into::kAdd);
      }
    }
  }
}

// Turns scores and score_grads of eight keys against a block of queries into (dropped out)
// probabilities and dS.
template <typename Real>
HWY_INLINE void band_of_keys(const SweepArgs<Real>& args, const Rows& rows, int64_t key,
                             const ColumnRange& range, NearScratch<Real>& scratch) {
  const hn::ScalableTag<Real> d;
  const NearBlock<Real>& block = scratch.block;
  const int64_t first_query = block.begin + range.begin;
  if (args.near_dropout > 0) {
    const Dropout dropout = dropout_of(args, rows);
    for (int64_t r = 0; r < kNearRows; r += 4) {
      dropout_for_keys(dropout, key + r, first_query, range.size(),
                       scratch.factors + r * kNearStride, kNearStride);
    }
  }
  const auto scale = hn::Set(d, args.near_scale);
  for (int64_t r = 0; r < kNearRows; ++r) {
    Real* scores = scratch.scores + r * kNearStride;
    Real* grads = scratch.score_grads + r * kNearStride;
    if (!rows.live(key + r)) {
      fill_row(range.size(), Real(0), scores);
      fill_row(range.size(), Real(0), grads);
      continue;
    }
    // Query i sees key j when -left <= j - i <= right, so key j is seen from j - right to j + left.
    const RowBand<hn::ScalableTag<Real>> band(d, key + r, args.right, args.left, first_query,
                                              block.live + range.begin);
    for (int64_t c = 0; c < range.size(); c += hn::Lanes(d)) {
      const auto lse = hn::LoadU(d, scratch.column_lse + range.begin + c);
      const auto dot = hn::LoadU(d, scratch.column_dot + range.begin + c);
      const auto exponent = hn::MulSub(hn::LoadU(d, scores + c), scale, lse);
      const auto probability = hn::IfThenElseZero(band.sees(c), exp_nonpositive(d, exponent));
      auto kept = hn::Set(d, Real(1));
      if (args.near_dropout > 0) kept = hn::LoadU(d, scratch.factors + r * kNearStride + c);
      const auto centred = hn::MulSub(hn::LoadU(d, grads + c), kept, dot);
      // A column that is not seen may hold anything in `centred`, NaN included.
      const auto score_grad =
          hn::IfThenElseZero(band.sees(c), hn::Mul(hn::Mul(probability, scale), centred));
      hn::StoreU(score_grad, d, grads + c);
      hn::StoreU(hn::Mul(probability, kept), d, scores + c);
    }
  }
}

/// dk_tile += weight * the near field's part; dv_near = sum_i P_ij dO_i, without any weight; for
/// the keys [begin, begin + count). v_tile is v, times near_weight when that varies by channel.
template <typename Real>
HWY_NOINLINE void near_backward_keys(const SweepArgs<Real>& args, const Rows& rows, int64_t begin,
                                     int64_t count, const Real* k_tile, const Real* v_tile,
                                     const Real* dots, Real weight, Real* dk_tile, Real* dv_near,
                                     NearScratch<Real>& scratch) {
  const int64_t width = padded(args.head_dim), value_width = padded(args.value_dim);
  fill_row(count * value_width, Real(0), dv_near);
  const Real* lse = args.log_sum_exp + (rows.batch * args.heads + rows.head) * args.length;
  const BlockRange all = all_columns_seen(begin, count, args.right, args.left, args.length);
  for (int64_t b = all.begin; b < all.end; b += kNearBlock) {
    const int64_t end = std::min(b + kNearBlock, all.end);
    load_block(args, rows, b, end, args.q, args.grad_out, /*transpose_second=*/true, scratch.block);
    for (int64_t c = 0; c < end - b; ++c)
      scratch.column_lse[c] = lse[b + c], scratch.column_dot[c] = dots[b + c];
    for (int64_t r = 0; r < count; r += kNearRows) {
      const ColumnRange range = columns_seen(begin + r, args.right, args.left, b, end);
      if (range.size() <= 0) continue;
      product(kNearRows, range.size(), width, left_rows(k_tile + r * width, width),
              RowTile<const Real>{scratch.block.first_t + range.begin, kNearStride},
              RowTile<Real>{scratch.scores, kNearStride}, Into::kOverwrite);
      product(kNearRows, range.size(), value_width,
              left_rows(v_tile + r * value_width, value_width),
              RowTile<const Real>{scratch.block.second_t + range.begin, kNearStride},
              RowTile<Real>{scratch.score_grads, kNearStride}, Into::kOverwrite);
      band_of_keys(args, rows, begin + r, range, scratch);
      for (int64_t i = 0; i < kNearRows; ++i) {
        if (weight != Real(1))
          scale_row(range.size(), weight, scratch.score_grads + i * kNearStride,
                    scratch.score_grads + i * kNearStride);
      }
      product(kNearRows, width, range.size(), left_rows(scratch.score_grads, kNearStride),
              RowTile<const Real>{scratch.block.first + range.begin * width, width},
              RowTile<Real>{dk_tile + r * width, width}, Into::kAdd);
      product(kNearRows, value_width, range.size(), left_rows(scratch.scores, kNearStride),
              RowTile<const Real>{scratch.block.second + range.begin * value_width, value_width},
              RowTile<Real>{dv_near + r * value_width, value_width}, Into::kAdd);
    }
  }
}

}  // namespace fmmformer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // FMMFORMER_NEAR_FIELD_INL_H_
