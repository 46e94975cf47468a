// SPDX-License-Identifier: Apache-2.0
// The near field: softmax inside the band, for a chunk of queries.
//
// The queries meet their keys ("columns") in blocks of up to kNearBlock, eight queries at a time,
// so that only the columns inside those eight rows' band are computed. A narrow band fits one
// block; a wide one is worked off block by block, with the running maximum and sum of online
// softmax.
#if defined(FMMFORMER_NEAR_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FMMFORMER_NEAR_FORWARD_INL_H_
#undef FMMFORMER_NEAR_FORWARD_INL_H_
#else
#define FMMFORMER_NEAR_FORWARD_INL_H_
#endif

#include <algorithm>
#include <cmath>

#include "attention/cpu/simd_math-inl.h"
#include "attention/cpu/tile_io-inl.h"
#include "attention/fmm/cpu/near_block-inl.h"
#include "attention/fmm/cpu/sweep.h"

HWY_BEFORE_NAMESPACE();
namespace fmmformer::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Scales a row of scores, with kNoScore where nothing is seen. Returns the greatest of every lane.
template <typename Real>
HWY_INLINE hn::Vec<hn::ScalableTag<Real>> mask_row(const RowBand<hn::ScalableTag<Real>>& band,
                                                   int64_t count, Real scale, Real* scores) {
  const hn::ScalableTag<Real> d;
  const auto scales = hn::Set(d, scale), nothing = hn::Set(d, kNoScore<Real>);
  auto highest = nothing;
  for (int64_t c = 0; c < count; c += hn::Lanes(d)) {
    const auto score =
        hn::IfThenElse(band.sees(c), hn::Mul(hn::LoadU(d, scores + c), scales), nothing);
    hn::StoreU(score, d, scores + c);
    highest = hn::Max(highest, score);
  }
  return highest;
}

// Scores of a row to exp(score - peak). Returns the sum of every lane.
template <typename Real>
HWY_INLINE hn::Vec<hn::ScalableTag<Real>> soften_row(int64_t count, Real peak, Real* scores) {
  const hn::ScalableTag<Real> d;
  const auto peaks = hn::Set(d, peak);
  auto sums = hn::Zero(d);
  for (int64_t c = 0; c < count; c += hn::Lanes(d)) {
    const auto weight = exp_nonpositive(d, hn::Sub(hn::LoadU(d, scores + c), peaks));
    hn::StoreU(weight, d, scores + c);
    sums = hn::Add(sums, weight);
  }
  return sums;
}

// Eight rows of scores (the block's columns in `range`) to exp(score - peak), with the rows'
// running peaks and totals. What was accumulated under an old peak is made smaller.
template <typename Real>
HWY_INLINE void soften_rows(const SweepArgs<Real>& args, const Rows& rows, int64_t begin, int64_t r,
                            const ColumnRange& range, NearScratch<Real>& scratch) {
  static_assert(kNearRows == kRowsTogether);
  const hn::ScalableTag<Real> d;
  const NearBlock<Real>& block = scratch.block;
  hn::Vec<decltype(d)> lanes[kNearRows];
  Real peaks[kNearRows], sums[kNearRows];
  for (int64_t i = 0; i < kNearRows; ++i) {
    const RowBand<hn::ScalableTag<Real>> band(d, begin + r + i, args.left, args.right,
                                              block.begin + range.begin, block.live + range.begin);
    Real* row = scratch.scores + i * kNearStride;
    lanes[i] = rows.live(begin + r + i) ? mask_row(band, range.size(), args.near_scale, row)
                                        : hn::Set(d, kNoScore<Real>);
  }
  largest_of_lanes(d, lanes, peaks);
  for (int64_t i = 0; i < kNearRows; ++i) {
    Real* row = scratch.scores + i * kNearStride;
    peaks[i] = std::max(peaks[i], scratch.peak[r + i]);
    if (peaks[i] == kNoScore<Real>) {  // nothing seen so far
      fill_row(range.size(), Real(0), row);
      lanes[i] = hn::Zero(d);
    } else {
      lanes[i] = soften_row(range.size(), peaks[i], row);
    }
  }
  sums_of_lanes(d, lanes, sums);
  for (int64_t i = 0; i < kNearRows; ++i) {
    Real &peak = scratch.peak[r + i], &total = scratch.total[r + i];
    if (peak != kNoScore<Real> && peak != peaks[i]) {  // not the first block that it sees
      const Real correction = hn::GetLane(exp_nonpositive(d, hn::Set(d, peak - peaks[i])));
      Real* accumulated = scratch.accumulated + (r + i) * padded(args.value_dim);
      scale_row(padded(args.value_dim), correction, accumulated, accumulated);
      total *= correction;
    }
    total += sums[i], peak = peaks[i];
  }
}

// Eight queries against a block: adds exp(score - peak) V to `target`, or, where all their keys are
// in this block, final_weight times the softmax of it.
template <typename Real>
HWY_INLINE void near_forward_rows(const SweepArgs<Real>& args, const Rows& rows, int64_t begin,
                                  int64_t r, const Real* q_tile, Real final_weight, Real* target,
                                  NearScratch<Real>& scratch) {
  const int64_t width = padded(args.head_dim), value_width = padded(args.value_dim);
  const NearBlock<Real>& block = scratch.block;
  const ColumnRange range = columns_seen(begin + r, args.left, args.right, block.begin, block.end);
  if (range.size() <= 0) return;
  product(kNearRows, range.size(), width, left_rows(q_tile + r * width, width),
          RowTile<const Real>{block.k_t + range.begin, kNearStride},
          RowTile<Real>{scratch.scores, kNearStride}, Into::kOverwrite);
  soften_rows(args, rows, begin, r, range, scratch);
  Real factors[kNearRows];
  for (int64_t i = 0; i < kNearRows; ++i) factors[i] = final_weight / scratch.total[r + i];
  for (int64_t i = 0; i < kNearRows; ++i) {
    if (!rows.live(begin + r + i)) continue;
    Real* row = scratch.scores + i * kNearStride;
    if (args.near_dropout > 0) {
      dropout_for_query(dropout_of(args, rows), begin + r + i, block.begin + range.begin,
                        range.size(), scratch.factors);
      multiply_row(range.size(), scratch.factors, row);
    }
    if (final_weight != Real(0)) scale_row(range.size(), factors[i], row, row);
  }
  product_of_band(kNearRows, value_width, range.size(),
                  band_of_rows(args, begin + r, block.begin + range.begin),
                  left_rows(scratch.scores, kNearStride),
                  RowTile<const Real>{block.v + range.begin * value_width, value_width},
                  RowTile<Real>{target + r * value_width, value_width}, Into::kAdd);
}

template <typename Real>
HWY_INLINE void write_log_sum_exp(const SweepArgs<Real>& args, const Rows& rows, int64_t begin,
                                  int64_t count, const NearScratch<Real>& scratch) {
  const hn::ScalableTag<Real> d;
  Real* lse = args.log_sum_exp + (rows.batch * args.heads + rows.head) * args.length;
  HWY_ALIGN Real logs[kChunk];
  for (int64_t i = 0; i < count; i += hn::Lanes(d)) {
    hn::Store(hn::Log(d, hn::LoadU(d, scratch.total + i)), d, logs + i);
  }
  for (int64_t i = 0; i < count && begin + i < args.length; ++i) {
    lse[begin + i] = rows.live(begin + i) ? scratch.peak[i] + logs[i] : Real(0);
  }
}

// A band of several blocks, or weights that vary by channel: softmax sums first, then weights.
template <typename Real>
HWY_INLINE void near_forward_in_two_steps(const SweepArgs<Real>& args, const Rows& rows,
                                          int64_t begin, int64_t count, const Real* q_tile,
                                          Real* out_tile, NearScratch<Real>& scratch) {
  const int64_t value_width = padded(args.value_dim);
  fill_row(count * value_width, Real(0), scratch.accumulated);
  const BlockRange all = all_columns_seen(begin, count, args.left, args.right, args.length);
  for (int64_t b = all.begin; b < all.end; b += kNearBlock) {
    if (!scratch.holds_band) {
      load_block(args, rows, b, std::min(b + kNearBlock, all.end), /*transpose_values=*/false,
                 scratch);
    }
    for (int64_t r = 0; r < count; r += kNearRows)
      near_forward_rows(args, rows, begin, r, q_tile, Real(0), scratch.accumulated, scratch);
  }
  const Real* weight = args.near_weight + rows.head * args.value_dim;
  for (int64_t i = 0; i < count; ++i) {
    if (!rows.live(begin + i)) continue;
    const Real reciprocal = Real(1) / scratch.total[i];
    Real* out = out_tile + i * value_width;
    const Real* near = scratch.accumulated + i * value_width;
    for (int64_t e = 0; e < args.value_dim; ++e) out[e] += weight[e] * reciprocal * near[e];
  }
}

/// out_tile += near_weight * near, for the queries [begin, begin + count), count a multiple of 8;
/// writes log_sum_exp. load_band has been called.
template <typename Real>
HWY_NOINLINE void near_forward(const SweepArgs<Real>& args, const Rows& rows, int64_t begin,
                               int64_t count, const Real* q_tile, Real* out_tile,
                               NearScratch<Real>& scratch) {
  std::fill_n(scratch.peak, count, kNoScore<Real>);
  std::fill_n(scratch.total, count, Real(0));
  const Real weight = args.near_weight[rows.head * args.value_dim];
  if (scratch.holds_band && args.uniform_weights && weight != Real(0)) {
    for (int64_t r = 0; r < count; r += kNearRows)
      near_forward_rows(args, rows, begin, r, q_tile, weight, out_tile, scratch);
  } else {
    near_forward_in_two_steps(args, rows, begin, count, q_tile, out_tile, scratch);
  }
  write_log_sum_exp(args, rows, begin, count, scratch);
}

}  // namespace fmmformer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // FMMFORMER_NEAR_FORWARD_INL_H_
