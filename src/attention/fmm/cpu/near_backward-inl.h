// SPDX-License-Identifier: Apache-2.0
// Gradients of the near field, for a chunk of queries against the blocks of keys that they see:
//
//   P_ij  = exp(near_scale <q_i, k_j> - lse_i)        dP_ij = <w dO_i, v_j>
//   dot_i = sum_j P_ij dP_ij                          dS_ij = near_scale P_ij (dP_ij - dot_i)
//   dq_i  = sum_j dS_ij k_j      dk_j = sum_i dS_ij q_i      dv_j = w sum_i P_ij dO_i
//
// The band is computed once and serves both sides: queries own their rows of dq, and the sums of a
// key grow from chunk to chunk in memory until the last query that sees it has passed.
#if defined(FMMFORMER_NEAR_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FMMFORMER_NEAR_BACKWARD_INL_H_
#undef FMMFORMER_NEAR_BACKWARD_INL_H_
#else
#define FMMFORMER_NEAR_BACKWARD_INL_H_
#endif

#include <algorithm>

#include "attention/cpu/simd_math-inl.h"
#include "attention/cpu/tile_io-inl.h"
#include "attention/fmm/cpu/near_block-inl.h"
#include "attention/fmm/cpu/sweep.h"

HWY_BEFORE_NAMESPACE();
namespace fmmformer::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Probabilities of one row in place of its scores. Where nothing is seen, scores and gradients may
// hold anything, NaN included: both become 0.
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

/// A chunk of queries, and where its gradients go.
template <typename Real>
struct NearQueries {
  Rows rows;
  int64_t begin, count;       // count is a multiple of 8
  const Real* q;              // [count, padded D]
  const Real* grad;           // [count, padded Dv]: dO
  const Real* weighted_grad;  // the same times near_weight where that varies by channel
  Real weight;                // near_weight where it does not, else 1
  Real* dots;                 // [count], written: <weighted_grad_i, near_i>
  Real* dq;                   // [count, padded D], added to; none: only the keys' side is wanted
};

// P and dP (times what dropout keeps) of eight queries against a block.
template <typename Real>
HWY_INLINE void band_of_queries(const SweepArgs<Real>& args, const NearQueries<Real>& queries,
                                int64_t r, const ColumnRange& range, NearScratch<Real>& scratch) {
  const hn::ScalableTag<Real> d;
  const int64_t width = padded(args.head_dim), value_width = padded(args.value_dim);
  const NearBlock<Real>& block = scratch.block;
  const Rows& rows = queries.rows;
  Real* scores = scratch.scores + r * kNearStride + range.begin;
  Real* score_grads = scratch.score_grads + r * kNearStride + range.begin;
  product(kNearRows, range.size(), width, left_rows(queries.q + r * width, width),
          RowTile<const Real>{block.k_t + range.begin, kNearStride},
          RowTile<Real>{scores, kNearStride}, Into::kOverwrite);
  product(kNearRows, range.size(), value_width,
          left_rows(queries.weighted_grad + r * value_width, value_width),
          RowTile<const Real>{block.v_t + range.begin, kNearStride},
          RowTile<Real>{score_grads, kNearStride}, Into::kOverwrite);
  const Real* lse = args.log_sum_exp + (rows.batch * args.heads + rows.head) * args.length;
  for (int64_t i = 0; i < kNearRows; ++i, scores += kNearStride, score_grads += kNearStride) {
    const int64_t query = queries.begin + r + i;
    if (!rows.live(query)) {
      fill_row(range.size(), Real(0), scores);
      fill_row(range.size(), Real(0), score_grads);
      // Multiplied with later: scratch may hold NaN.
      fill_row(range.size(), Real(0), scratch.factors + (r + i) * kNearStride + range.begin);
      continue;
    }
    const RowBand<hn::ScalableTag<Real>> band(d, query, args.left, args.right,
                                              block.begin + range.begin, block.live + range.begin);
    probabilities_of_row(band, range.size(), args.near_scale, lse[query], scores, score_grads);
    if (args.near_dropout > 0) {
      Real* factors = scratch.factors + (r + i) * kNearStride + range.begin;
      dropout_for_query(dropout_of(args, rows), query, block.begin + range.begin, range.size(),
                        factors);
      multiply_row(range.size(), factors, score_grads);
    }
  }
}

// dots_i += sum_j P_ij dP_ij over the block's columns.
template <typename Real>
HWY_INLINE void add_dots(const NearQueries<Real>& queries, int64_t r, const ColumnRange& range,
                         const NearScratch<Real>& scratch) {
  const hn::ScalableTag<Real> d;
  hn::Vec<decltype(d)> lanes[kNearRows];
  Real dots[kNearRows];
  for (int64_t i = 0; i < kNearRows; ++i) {
    const int64_t at = (r + i) * kNearStride + range.begin;
    lanes[i] = products_of_rows(range.size(), scratch.scores + at, scratch.score_grads + at);
  }
  sums_of_lanes(d, lanes, dots);
  for (int64_t i = 0; i < kNearRows; ++i) queries.dots[r + i] += dots[i];
}

// dS in place of dP, and the dropped out probabilities in place of P.
template <typename Real>
HWY_INLINE void score_gradients(const SweepArgs<Real>& args, const NearQueries<Real>& queries,
                                int64_t r, const ColumnRange& range, NearScratch<Real>& scratch) {
  const hn::ScalableTag<Real> d;
  const auto factor = hn::Set(d, queries.weight * args.near_scale);
  for (int64_t i = r; i < r + kNearRows; ++i) {
    Real* probability = scratch.scores + i * kNearStride + range.begin;
    Real* grad = scratch.score_grads + i * kNearStride + range.begin;
    const auto dot = hn::Set(d, queries.dots[i]);
    for (int64_t c = 0; c < range.size(); c += hn::Lanes(d)) {
      const auto centred = hn::Sub(hn::LoadU(d, grad + c), dot);
      hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, probability + c), factor), centred), d, grad + c);
    }
    if (args.near_dropout > 0)
      multiply_row(range.size(), scratch.factors + i * kNearStride + range.begin, probability);
  }
}

// Zeros where a row of the block's columns lies outside the range that eight rows share.
template <typename Real>
HWY_INLINE void clear_outside(const ColumnRange& range, int64_t columns, Real* row) {
  const int64_t lanes = hn::Lanes(hn::ScalableTag<Real>());
  fill_row(range.begin, Real(0), row);  // before the range is computed: this may run into it
  const int64_t behind = range.begin + round_up(range.size(), lanes);
  if (behind < columns) fill_row(columns - behind, Real(0), row + behind);
}

// dk_j += sum_i dS_ij q_i and dv_j += sum_i P_ij dO_i for the keys [begin, end) of a block, over
// the queries that see them. dv is without the weight.
template <typename Real>
HWY_NOINLINE void sum_over_queries(const SweepArgs<Real>& args, const NearQueries<Real>& queries,
                                   const NearScratch<Real>& scratch, int64_t begin, int64_t end) {
  const int64_t width = padded(args.head_dim), value_width = padded(args.value_dim);
  const int64_t at = begin - scratch.block.begin, keys = round_up(end - begin, 8);
  // Query i sees key j when -left <= j - i <= right.
  const int64_t key = begin - queries.begin;
  const Band band{.before = args.right - key, .after = key + args.left};
  product_of_band(keys, width, queries.count, band,
                  left_transposed<Real>(scratch.score_grads + at, kNearStride),
                  RowTile<const Real>{queries.q, width}, RowTile<Real>{scratch.dk, width},
                  Into::kAdd);
  product_of_band(keys, value_width, queries.count, band,
                  left_transposed<Real>(scratch.scores + at, kNearStride),
                  RowTile<const Real>{queries.grad, value_width},
                  RowTile<Real>{scratch.dv, value_width}, Into::kAdd);
}

/// The keys whose sums a segment keeps in near_dk and near_dv, and how far these sums have begun:
/// memory beyond is fresh.
struct OwnedKeys {
  int64_t begin, end, begun;
};

template <typename Real>
HWY_INLINE void add_to_keys(const SweepArgs<Real>& args, const NearQueries<Real>& queries,
                            NearScratch<Real>& scratch, OwnedKeys& keys) {
  const int64_t width = padded(args.head_dim), value_width = padded(args.value_dim);
  const NearBlock<Real>& block = scratch.block;
  const int64_t begin = std::max(block.begin, keys.begin), end = std::min(block.end, keys.end);
  if (begin >= end) return;
  const int64_t old = std::clamp(keys.begun, begin, end) - begin, fresh = round_up(end - begin, 8);
  constexpr Element kReal = native_element<Real>();
  load_rows(kReal, args.near_dk, queries.rows, begin, old, args.head_dim, scratch.dk);
  load_rows(kReal, args.near_dv, queries.rows, begin, old, args.value_dim, scratch.dv);
  fill_row((fresh - old) * width, Real(0), scratch.dk + old * width);
  fill_row((fresh - old) * value_width, Real(0), scratch.dv + old * value_width);
  sum_over_queries(args, queries, scratch, begin, end);
  store_rows(kReal, scratch.dk, queries.rows, begin, end, args.head_dim, args.near_dk);
  store_rows(kReal, scratch.dv, queries.rows, begin, end, args.value_dim, args.near_dv);
}

/// The keys of a causal walk from the end: their sums stay in the scratch, row by row from the
/// block's first key on. Keys before the chunk go on growing with the chunk before.
struct CarriedKeys {
  int64_t begin = 0, count = 0;  // unfinished keys, from the scratch's first row on
};

// Makes room for the `fresh` rows before those that are carried, and clears what is not carried.
template <typename Real>
HWY_INLINE void carry_rows(int64_t width, int64_t fresh, int64_t carried, int64_t rows,
                           Real* sums) {
  if (fresh > 0) std::copy_backward(sums, sums + carried * width, sums + (fresh + carried) * width);
  fill_row(fresh * width, Real(0), sums);
  if (fresh + carried < rows)
    fill_row((rows - fresh - carried) * width, Real(0), sums + (fresh + carried) * width);
}

template <typename Real>
HWY_INLINE void add_to_keys(const SweepArgs<Real>& args, const NearQueries<Real>& queries,
                            NearScratch<Real>& scratch, CarriedKeys& keys) {
  const NearBlock<Real>& block = scratch.block;
  const int64_t rows = round_up(queries.begin + queries.count - block.begin, 8);
  const int64_t fresh = keys.count > 0 ? keys.begin - block.begin : 0;
  carry_rows(padded(args.head_dim), fresh, keys.count, rows, scratch.dk);
  carry_rows(padded(args.value_dim), fresh, keys.count, rows, scratch.dv);
  sum_over_queries(args, queries, scratch, block.begin, block.end);
  keys = {block.begin, queries.begin - block.begin};
}

// What a pass over the blocks adds to. A row's gradients need its whole dot: where the band is one
// block, one pass does both.
enum class NearPass { kDots, kGradients, kBoth };

template <typename Real, typename Keys>
HWY_INLINE void near_backward_block(const SweepArgs<Real>& args, const NearQueries<Real>& queries,
                                    NearPass pass, NearScratch<Real>& scratch, Keys& keys) {
  const int64_t width = padded(args.head_dim);
  const NearBlock<Real>& block = scratch.block;
  const int64_t columns = block.end - block.begin;
  for (int64_t r = 0; r < queries.count; r += kNearRows) {
    ColumnRange range =
        columns_seen(queries.begin + r, args.left, args.right, block.begin, block.end);
    if (range.size() <= 0) range = {0, 0};
    for (int64_t i = r; i < r + kNearRows; ++i) {
      clear_outside(range, columns, scratch.scores + i * kNearStride);
      clear_outside(range, columns, scratch.score_grads + i * kNearStride);
    }
    if (range.size() == 0) continue;
    band_of_queries(args, queries, r, range, scratch);
    if (pass != NearPass::kGradients) add_dots(queries, r, range, scratch);
    if (pass == NearPass::kDots) continue;
    score_gradients(args, queries, r, range, scratch);
    if (queries.dq == nullptr) continue;
    product_of_band(kNearRows, width, range.size(),
                    band_of_rows(args, queries.begin + r, block.begin + range.begin),
                    left_rows(scratch.score_grads + r * kNearStride + range.begin, kNearStride),
                    RowTile<const Real>{block.k + range.begin * width, width},
                    RowTile<Real>{queries.dq + r * width, width}, Into::kAdd);
  }
  if (pass != NearPass::kDots) add_to_keys(args, queries, scratch, keys);
}

/// Adds to dq and to the keys' sums what this chunk of queries contributes, and writes its dots.
/// load_band has been called, and has all columns.
template <typename Real>
HWY_NOINLINE void near_backward(const SweepArgs<Real>& args, const NearQueries<Real>& queries,
                                NearScratch<Real>& scratch, CarriedKeys& keys) {
  std::fill_n(queries.dots, queries.count, Real(0));
  near_backward_block(args, queries, NearPass::kBoth, scratch, keys);
}

/// The same for sums in near_dk and near_dv and for bands of any width.
template <typename Real>
HWY_NOINLINE void near_backward(const SweepArgs<Real>& args, const NearQueries<Real>& queries,
                                NearScratch<Real>& scratch, OwnedKeys& keys) {
  std::fill_n(queries.dots, queries.count, Real(0));
  const BlockRange all =
      all_columns_seen(queries.begin, queries.count, args.left, args.right, args.length);
  const auto for_blocks = [&](NearPass pass) {
    for (int64_t b = all.begin; b < all.end; b += kNearBlock) {
      load_block(args, queries.rows, b, std::min(b + kNearBlock, all.end),
                 /*transpose_values=*/true, scratch);
      near_backward_block(args, queries, pass, scratch, keys);
    }
  };
  if (scratch.holds_band) {
    near_backward_block(args, queries, NearPass::kBoth, scratch, keys);
  } else {  // a score's gradient needs its row's whole dot
    for_blocks(NearPass::kDots);
    for_blocks(NearPass::kGradients);
  }
  keys.begun = std::max(keys.begun, all.end);
}

}  // namespace fmmformer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // FMMFORMER_NEAR_BACKWARD_INL_H_
