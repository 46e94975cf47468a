// SPDX-License-Identifier: Apache-2.0
// The near field's view of a tensor: blocks of columns, and which of them a row sees.
#if defined(FMMFORMER_NEAR_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FMMFORMER_NEAR_BLOCK_INL_H_
#undef FMMFORMER_NEAR_BLOCK_INL_H_
#else
#define FMMFORMER_NEAR_BLOCK_INL_H_
#endif

#include <algorithm>

#include "attention/cpu/products-inl.h"
#include "attention/cpu/rows-inl.h"
#include "attention/cpu/tile_io-inl.h"
#include "attention/fmm/cpu/dropout-inl.h"
#include "attention/fmm/cpu/sweep.h"

HWY_BEFORE_NAMESPACE();
namespace fmmformer::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr int64_t kNearRows =
    8;  // rows that share a range of columns: more would widen it beyond the band
inline constexpr int64_t kNearStride =
    kNearBlock + 32;  // room for the vector that overhangs the last column

/// Below every score, yet far enough from the end of the range that differences stay finite.
template <typename Real>
constexpr Real kNoScore = sizeof(Real) == 8 ? Real(-1e300) : Real(-1e30);

/// The keys and values of neighbouring columns, plain and transposed.
template <typename Real>
struct NearBlock {
  int64_t begin = 0, end = 0;  // absolute column numbers
  Real* k;                     // [columns, padded D]
  Real* k_t;                   // [padded D, kNearStride]
  Real* v;                     // [columns, padded Dv]
  Real* v_t;                   // [padded Dv, kNearStride]
  Real* live;                  // [columns] 1 or 0

  /// The columns [first, last) of this block.
  HWY_INLINE NearBlock part(int64_t first, int64_t last, int64_t width, int64_t value_width) const {
    const int64_t at = first - begin;
    return {first, last, k + at * width, k_t + at, v + at * value_width, v_t + at, live + at};
  }
};

template <typename Real>
struct NearScratch {
  NearBlock<Real> loaded;   // up to kNearBlock columns
  NearBlock<Real> block;    // those of them that the chunk sees, or (a wide band) all
  bool holds_band = false;  // the block has all columns of the current chunk (load_band)
  Real* scores;             // [kChunk, kNearStride]; later probabilities
  Real* score_grads;        // [kChunk, kNearStride]
  Real* factors;            // [kChunk, kNearStride] of dropout
  Real* accumulated;        // [kChunk, padded Dv]
  Real *dk, *dv;            // [kNearStride, padded D or Dv]
  Real peak[kChunk], total[kChunk];

  NearScratch(const SweepArgs<Real>& args, Arena& arena) {
    const int64_t width = padded(args.head_dim), value_width = padded(args.value_dim);
    loaded.k = arena.take<Real>(kNearStride * width);
    loaded.k_t = arena.take<Real>(width * kNearStride);
    loaded.v = arena.take<Real>(kNearStride * value_width);
    loaded.v_t = arena.take<Real>(value_width * kNearStride);
    loaded.live = arena.take<Real>(2 * kNearStride);
    for (Real** tile : {&scores, &score_grads, &factors})
      *tile = arena.take<Real>(kChunk * kNearStride);
    accumulated = arena.take<Real>(kChunk * value_width);
    dk = arena.take<Real>(kNearStride * width);
    dv = arena.take<Real>(kNearStride * value_width);
  }
};

template <typename Real>
HWY_INLINE Dropout dropout_of(const SweepArgs<Real>& args, const Rows& rows) {
  return {args.dropout_seed, static_cast<uint32_t>(rows.batch * args.heads + rows.head),
          args.near_dropout};
}

/// All columns that rows [begin, begin + count) see.
struct BlockRange {
  int64_t begin, end;
};
HWY_INLINE BlockRange all_columns_seen(int64_t begin, int64_t count, int64_t before, int64_t after,
                                       int64_t length) {
  return {std::max<int64_t>(begin - before, 0), std::min(begin + count + after, length)};
}

/// Loads keys and values behind those that `loaded` has: up to the column `end`, and up to three
/// more. Rows that do not exist become zeros.
template <typename Real>
HWY_NOINLINE void load_columns(const SweepArgs<Real>& args, const Rows& rows, int64_t end,
                               bool transpose_values, NearBlock<Real>& loaded) {
  const int64_t width = padded(args.head_dim), value_width = padded(args.value_dim);
  const int64_t begin = loaded.end, at = begin - loaded.begin, count = round_up(end - begin, 4);
  Real *k = loaded.k + at * width, *v = loaded.v + at * value_width;
  load_rows(args.element, args.k, rows, begin, count, args.head_dim, k);
  transpose(count, width, k, width, loaded.k_t + at, kNearStride);
  load_rows(args.element, args.v, rows, begin, count, args.value_dim, v);
  if (transpose_values) transpose(count, value_width, v, value_width, loaded.v_t + at, kNearStride);
  // Vectors may overhang the columns: nothing is alive there. (Beyond a chunk's own columns some
  // may be: no row of it sees so far.)
  if (at == 0) fill_row(kNearStride, Real(0), loaded.live);
  for (int64_t c = 0; c < count; ++c)
    loaded.live[at + c] = rows.live(begin + c) ? Real(1) : Real(0);
  loaded.end = begin + count;
}

/// Loads the columns [begin, end) of a band of several blocks.
template <typename Real>
HWY_INLINE void load_block(const SweepArgs<Real>& args, const Rows& rows, int64_t begin,
                           int64_t end, bool transpose_values, NearScratch<Real>& scratch) {
  scratch.loaded.begin = scratch.loaded.end = begin;
  load_columns(args, rows, end, transpose_values, scratch.loaded);
  // What lies beyond the block belongs to the next one, if to anything.
  fill_row(kNearStride - (end - begin), Real(0), scratch.loaded.live + (end - begin));
  scratch.block = scratch.loaded;
  scratch.block.end = end;
  scratch.loaded.end = begin;  // nothing to go on from: `live` is this block's alone
}

/// Loads all columns that the queries [begin, begin + count) see, where they fit one block; else
/// near_forward and near_backward go through several. The chunk's own keys are among them: where
/// `holds_band`, the far field takes them from here. What the chunk before has loaded is kept as
/// long as there is room behind it.
template <typename Real>
HWY_INLINE void load_band(const SweepArgs<Real>& args, const Rows& rows, int64_t begin,
                          int64_t count, bool transpose_values, NearScratch<Real>& scratch) {
  const BlockRange all = all_columns_seen(begin, count, args.left, args.right, args.length);
  const int64_t end = std::max(all.end, begin + count);
  scratch.holds_band = args.has_near && end - all.begin <= kNearBlock;
  if (!scratch.holds_band) return;
  NearBlock<Real>& loaded = scratch.loaded;
  const bool goes_on = loaded.begin <= all.begin && all.begin <= loaded.end &&
                       end - loaded.begin <= kNearBlock &&
                       (all.begin - loaded.begin) % kVectorPad == 0;  // vectors stay aligned
  if (!goes_on) loaded.begin = loaded.end = all.begin;
  if (loaded.end < end) load_columns(args, rows, end, transpose_values, loaded);
  scratch.block = loaded.part(all.begin, all.end, padded(args.head_dim), padded(args.value_dim));
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

/// What the rows from `row` on see of the columns from `first_column` on, which are the first that
/// `row` sees of its block or behind it.
template <typename Real>
HWY_INLINE Band band_of_rows(const SweepArgs<Real>& args, int64_t row, int64_t first_column) {
  return {.before = first_column + args.left - row, .after = row + args.right - first_column};
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

}  // namespace fmmformer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // FMMFORMER_NEAR_BLOCK_INL_H_
