// SPDX-License-Identifier: Apache-2.0
// The near field's view of a tensor: blocks of columns, and which of them a row sees.
#if defined(FMMFORMER_NEAR_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FMMFORMER_NEAR_BLOCK_INL_H_
#undef FMMFORMER_NEAR_BLOCK_INL_H_
#else
#define FMMFORMER_NEAR_BLOCK_INL_H_
#endif

#include <algorithm>

#include "attention/fmm/cpu/dropout-inl.h"
#include "attention/fmm/cpu/products-inl.h"
#include "attention/fmm/cpu/rows-inl.h"
#include "attention/fmm/cpu/sweep.h"
#include "attention/fmm/cpu/tile_io-inl.h"

HWY_BEFORE_NAMESPACE();
namespace fmmformer::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr int64_t kNearRows =
    8;  // rows that share a range of columns: more would widen it beyond the band
inline constexpr int64_t kNearBlock =
    128;  // columns held at a time: two tiles of them and their transposes fit L2
inline constexpr int64_t kNearStride =
    kNearBlock + 32;  // room for the vector that overhangs the last column

/// Below every score, yet far enough from the end of the range that differences stay finite.
template <typename Real>
constexpr Real kNoScore = sizeof(Real) == 8 ? Real(-1e300) : Real(-1e30);

/// The columns of one block: a pair of tensors' rows, plain and transposed.
template <typename Real>
struct NearBlock {
  int64_t begin = 0, end = 0;  // absolute column numbers
  Real* first;                 // [columns, padded D]   k, or q when rows are keys
  Real* first_t;               // [padded D, kNearStride]
  Real* second;                // [columns, padded Dv]  v, or dO
  Real* second_t;              // [padded Dv, kNearStride]
  Real* live;                  // [columns] 1 or 0
};

template <typename Real>
struct NearScratch {
  NearBlock<Real> block;
  Real* scores;       // [kNearRows, kNearStride]; later probabilities
  Real* score_grads;  // [kNearRows, kNearStride]
  Real* factors;      // [kNearRows, kNearStride] of dropout
  Real* accumulated;  // [kChunk, padded Dv]
  Real peak[kChunk], total[kChunk];
  Real column_lse[kNearStride], column_dot[kNearStride];

  NearScratch(const SweepArgs<Real>& args, Arena& arena) {
    const int64_t width = padded(args.head_dim), value_width = padded(args.value_dim);
    block.first = arena.take<Real>(kNearStride * width);
    block.first_t = arena.take<Real>(width * kNearStride);
    block.second = arena.take<Real>(kNearStride * value_width);
    block.second_t = arena.take<Real>(value_width * kNearStride);
    block.live = arena.take<Real>(kNearStride);
    scores = arena.take<Real>(kNearRows * kNearStride);
    score_grads = arena.take<Real>(kNearRows * kNearStride);
    factors = arena.take<Real>(kNearRows * kNearStride);
    accumulated = arena.take<Real>(kChunk * value_width);
  }
};

template <typename Real>
HWY_INLINE Dropout dropout_of(const SweepArgs<Real>& args, const Rows& rows) {
  return {args.dropout_seed, static_cast<uint32_t>(rows.batch * args.heads + rows.head),
          args.near_dropout};
}

template <typename Real>
HWY_NOINLINE void load_block(const SweepArgs<Real>& args, const Rows& rows, int64_t begin,
                             int64_t end, const View& first, const View& second,
                             bool transpose_second, NearBlock<Real>& block) {
  const int64_t width = padded(args.head_dim), value_width = padded(args.value_dim);
  const int64_t count = round_up(end - begin, 4);
  block.begin = begin, block.end = end;
  load_rows(args.element, first, rows, begin, count, args.head_dim, block.first);
  transpose(count, width, block.first, width, block.first_t, kNearStride);
  load_rows(args.element, second, rows, begin, count, args.value_dim, block.second);
  if (transpose_second)
    transpose(count, value_width, block.second, value_width, block.second_t, kNearStride);
  // Vectors may overhang the block: what lies beyond it belongs to the next block, if to anything.
  fill_row(kNearStride, Real(0), block.live);
  for (int64_t c = 0; c < end - begin; ++c) {
    block.live[c] = rows.mask == nullptr || rows.mask[begin + c] ? Real(1) : Real(0);
  }
}

/// The columns of a block that at least one of the rows [row, row + kNearRows) sees, relative to
/// the block.
struct ColumnRange {
  int64_t begin, end;
  HWY_INLINE int64_t size() const { return end - begin; }
};
HWY_INLINE ColumnRange columns_seen(int64_t row, int64_t before, int64_t after, int64_t block_begin,
                                    int64_t block_end) {
  return {std::max(row - before, block_begin) - block_begin,
          std::min(row + kNearRows + after, block_end) - block_begin};
}

/// For one row: which of the lanes from column `c` on (relative to the range's begin) it sees.
template <class D>
struct RowBand {
  using T = hn::TFromD<D>;
  D d;
  hn::Vec<D> first, last;
  const T* live;

  HWY_INLINE RowBand(D d, int64_t row, int64_t before, int64_t after, int64_t range_begin,
                     const T* live)
      : d(d),
        first(hn::Set(d, static_cast<T>(row - before - range_begin))),
        last(hn::Set(d, static_cast<T>(row + after - range_begin))),
        live(live) {}
  HWY_INLINE hn::Mask<D> sees(int64_t c) const {
    const auto column = hn::Iota(d, static_cast<T>(c));
    return hn::And(hn::And(hn::Ge(column, first), hn::Le(column, last)),
                   hn::Ne(hn::LoadU(d, live + c), hn::Zero(d)));
  }
};

/// All columns that rows [begin, begin + count) see.
struct BlockRange {
  int64_t begin, end;
};
HWY_INLINE BlockRange all_columns_seen(int64_t begin, int64_t count, int64_t before, int64_t after,
                                       int64_t length) {
  return {std::max<int64_t>(begin - before, 0), std::min(begin + count + after, length)};
}

}  // namespace fmmformer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // FMMFORMER_NEAR_BLOCK_INL_H_
