// SPDX-License-Identifier: Apache-2.0
// Small matrix products on padded tiles: the sweeps spend almost all of their time here.
#if defined(FMMFORMER_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FMMFORMER_PRODUCTS_INL_H_
#undef FMMFORMER_PRODUCTS_INL_H_
#else
#define FMMFORMER_PRODUCTS_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace fmmformer::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// The left factor: element (row, p) is data[row * row_stride + p * depth_stride], so a transposed
/// tile costs nothing.
template <typename T>
struct LeftTile {
  const T* data;
  int64_t row_stride, depth_stride;
};
template <typename T>
LeftTile<T> left_rows(const T* data, int64_t row_stride) {
  return {data, row_stride, 1};
}
template <typename T>
LeftTile<T> left_transposed(const T* data, int64_t row_stride) {
  return {data, 1, row_stride};
}

/// Right factor and result: rows of contiguous numbers.
template <typename T>
struct RowTile {
  T* data;
  int64_t row_stride;
};

enum class Into { kOverwrite, kAdd };

/// Of the left factor's row r, only the columns from r - before to r + after hold anything but
/// zeros; the others need not be multiplied. `kWhole` stands for no such limit.
struct Band {
  static constexpr int64_t kWhole = int64_t{1} << 40;
  int64_t before = kWhole, after = kWhole;
};

// kRows x kVectors accumulators stay in registers; each step of depth loads kVectors vectors and
// broadcasts kRows numbers. They begin with what `start` has, in rows as far apart as those of c;
// none: zeros.
template <int kRows, int kVectors, class D, typename T>
HWY_INLINE void register_tile(D d, int64_t depth, LeftTile<T> a, RowTile<const T> b, const T* start,
                              RowTile<T> c) {
  constexpr int64_t kLanes = hn::MaxLanes(d);
  hn::Vec<D> sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int n = 0; n < kVectors; ++n) {
      sum[r][n] =
          start != nullptr ? hn::LoadU(d, start + r * c.row_stride + n * kLanes) : hn::Zero(d);
    }
  }
  const T* HWY_RESTRICT left = a.data;
  const T* HWY_RESTRICT right = b.data;
#pragma GCC unroll 4  // narrow tiles have few products a step: the loop's own instructions show
  for (int64_t p = 0; p < depth; ++p) {
    hn::Vec<D> row[kVectors];
#pragma GCC unroll 16
    for (int n = 0; n < kVectors; ++n) row[n] = hn::LoadU(d, right + n * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const auto factor = hn::Set(d, left[r * a.row_stride]);
#pragma GCC unroll 16
      for (int n = 0; n < kVectors; ++n) sum[r][n] = hn::MulAdd(factor, row[n], sum[r][n]);
    }
    left += a.depth_stride;
    right += b.row_stride;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int n = 0; n < kVectors; ++n)
      hn::StoreU(sum[r][n], d, c.data + r * c.row_stride + n * kLanes);
  }
}

template <int kRows, int kVectors, class D, typename T>
HWY_NOINLINE void register_tile_column(D d, int64_t rows, int64_t depth, LeftTile<T> a,
                                       RowTile<const T> b, const T* start, RowTile<T> c) {
  for (int64_t r = 0; r < rows; r += kRows) {
    register_tile<kRows, kVectors>(d, depth,
                                   {a.data + r * a.row_stride, a.row_stride, a.depth_stride}, b,
                                   start == nullptr ? start : start + r * c.row_stride,
                                   {c.data + r * c.row_stride, c.row_stride});
  }
}

// The same for a banded left factor. The rows of a register tile share a range of depth: as few of
// them as keep the multiplier busy.
template <int kRows, int kVectors, class D, typename T>
HWY_NOINLINE void register_tile_band(D d, int64_t rows, int64_t depth, const Band& band,
                                     LeftTile<T> a, RowTile<const T> b, const T* start,
                                     RowTile<T> c) {
  for (int64_t r = 0; r < rows; r += kRows) {
    const int64_t first = std::max<int64_t>(r - band.before, 0),
                  last = std::min(r + kRows + band.after, depth);
    const LeftTile<T> left{a.data + r * a.row_stride + first * a.depth_stride, a.row_stride,
                           a.depth_stride};
    const RowTile<const T> right{b.data + first * b.row_stride, b.row_stride};
    register_tile<kRows, kVectors>(d, last - first, left, right,
                                   start == nullptr ? start : start + r * c.row_stride,
                                   {c.data + r * c.row_stride, c.row_stride});
  }
}

// 32 registers hold 4 x 4 sums, 4 vectors and a broadcast; 16 hold 4 x 3, 3 and 1.
inline constexpr int64_t kWidestTile = HWY_MAX_BYTES >= 64 ? 4 : 3;

// How many of the vectors that are left of a row to take next. One alone would load more than it
// multiplies: the last four or five go in two halves.
HWY_INLINE int64_t vectors_of_tile(int64_t left_over) {
  return left_over == kWidestTile + 1 ? kWidestTile - 1 : std::min(left_over, kWidestTile);
}

/// c = start + a b, for `rows` a multiple of 8. The rows of `start` are as far apart as those of c;
/// none: zeros. `columns` may be anything; up to one vector beyond them is written too.
template <typename T>
HWY_INLINE void product_onto(const T* start, int64_t rows, int64_t columns, int64_t depth,
                             LeftTile<T> a, RowTile<const T> b, RowTile<T> c) {
  const hn::ScalableTag<T> d;
  constexpr int64_t kLanes = hn::MaxLanes(d);
  // Where a wide vector is two narrow ones to the multiplier, a last half of one costs half.
  constexpr bool kHalves = HWY_MAX_BYTES >= 64;
  // Columns beyond whole vectors: how many more make another vector.
  constexpr int64_t kRest = kHalves ? kLanes / 2 - 1 : kLanes - 1;
  constexpr int64_t kDepthBlock =
      128;  // x 4 vectors: a slab of b that stays in L1 while rows pass over it
  for (int64_t p = 0; p < depth; p += kDepthBlock) {
    const int64_t steps = depth - p < kDepthBlock ? depth - p : kDepthBlock;
    const LeftTile<T> left{a.data + p * a.depth_stride, a.row_stride, a.depth_stride};
    for (int64_t column = 0; column < columns;) {
      const RowTile<const T> right{b.data + p * b.row_stride + column, b.row_stride};
      const RowTile<T> result{c.data + column, c.row_stride};
      const T* from = start == nullptr ? start : start + column;
      if constexpr (kHalves) {
        if (columns - column <= kLanes / 2) {
          const hn::Half<decltype(d)> half;
          register_tile_column<8, 1>(half, rows, steps, left, right, from, result);
          break;
        }
      }
      const int64_t vectors = vectors_of_tile((columns - column + kRest) / kLanes);
      if (kWidestTile == 4 && vectors == 4) {
        register_tile_column<4, 4>(d, rows, steps, left, right, from, result);
      } else if (vectors == 3) {
        register_tile_column<4, 3>(d, rows, steps, left, right, from, result);
      } else if (vectors == 2) {
        constexpr int kRows = kWidestTile == 4 ? 8 : 4;
        register_tile_column<kRows, 2>(d, rows, steps, left, right, from, result);
      } else {
        register_tile_column<8, 1>(d, rows, steps, left, right, from, result);
      }
      column += vectors * kLanes;
    }
    start = c.data;
  }
  if (depth > 0) return;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t n = 0; n < columns; ++n)
      c.data[r * c.row_stride + n] = start == nullptr ? T(0) : start[r * c.row_stride + n];
  }
}

/// c (+)= a b.
template <typename T>
HWY_INLINE void product(int64_t rows, int64_t columns, int64_t depth, LeftTile<T> a,
                        RowTile<const T> b, RowTile<T> c, Into into) {
  product_onto<T>(into == Into::kAdd ? c.data : nullptr, rows, columns, depth, a, b, c);
}

/// c (+)= a b for a banded a; `rows` a multiple of 8. Columns as in product_onto.
template <typename T>
HWY_INLINE void product_of_band(int64_t rows, int64_t columns, int64_t depth, const Band& band,
                                LeftTile<T> a, RowTile<const T> b, RowTile<T> c, Into into) {
  const hn::ScalableTag<T> d;
  constexpr int64_t kLanes = hn::MaxLanes(d);
  for (int64_t column = 0; column < columns;) {
    const RowTile<const T> right{b.data + column, b.row_stride};
    const RowTile<T> result{c.data + column, c.row_stride};
    const T* start = into == Into::kAdd ? result.data : nullptr;
    const int64_t vectors = vectors_of_tile((columns - column + kLanes - 1) / kLanes);
    if (kWidestTile == 4 && vectors == 4) {
      register_tile_band<4, 4>(d, rows, depth, band, a, right, start, result);
    } else if (vectors == 3) {
      register_tile_band<4, 3>(d, rows, depth, band, a, right, start, result);
    } else if (vectors == 2) {
      register_tile_band<4, 2>(d, rows, depth, band, a, right, start, result);
    } else {
      register_tile_band<8, 1>(d, rows, depth, band, a, right, start, result);
    }
    column += vectors * kLanes;
  }
}

/// c = lower triangle (diagonal included) of a b, rows x rows; what lies above the diagonal is
/// zeroed.
template <typename T>
HWY_INLINE void product_lower(int64_t rows, int64_t depth, LeftTile<T> a, RowTile<const T> b,
                              RowTile<T> c) {
  constexpr int64_t kBand = 16;  // as wide as the widest vector
  for (int64_t r = 0; r < rows; r += kBand) {
    const int64_t height = rows - r < kBand ? rows - r : kBand;
    for (int64_t i = r; i < r + height; i += 8) {
      product(8, i + 8, depth, {a.data + i * a.row_stride, a.row_stride, a.depth_stride}, b,
              {c.data + i * c.row_stride, c.row_stride}, Into::kOverwrite);
    }
    const hn::ScalableTag<T> d;
    for (int64_t i = r; i < r + height; ++i) {
      for (int64_t j = r; j < r + height; j += hn::Lanes(d)) {
        T* at = c.data + i * c.row_stride + j;
        const int64_t kept = i + 1 - j;  // lanes up to the diagonal
        hn::StoreU(hn::IfThenElseZero(hn::FirstN(d, kept > 0 ? kept : 0), hn::LoadU(d, at)), d, at);
      }
    }
  }
}

/// c (+)= L b for a lower triangular L (rows x rows).
template <typename T>
HWY_INLINE void lower_times(int64_t rows, int64_t columns, const T* lower, int64_t lower_stride,
                            RowTile<const T> b, RowTile<T> c, Into into) {
  product_of_band(rows, columns, rows, {.after = 0}, left_rows(lower, lower_stride), b, c, into);
}

/// c (+)= L^T b for a lower triangular L (rows x rows).
template <typename T>
HWY_INLINE void lower_transposed_times(int64_t rows, int64_t columns, const T* lower,
                                       int64_t lower_stride, RowTile<const T> b, RowTile<T> c,
                                       Into into) {
  product_of_band(rows, columns, rows, {.before = 0}, left_transposed(lower, lower_stride), b, c,
                  into);
}

/// to[column][row] = from[row][column]; rows and columns are multiples of 4. Blocks of 128 bits:
/// the shuffles inside them are the cheap ones on every machine, and full-width transposes measured
/// no faster.
template <typename T>
HWY_INLINE void transpose(int64_t rows, int64_t columns, const T* from, int64_t from_stride, T* to,
                          int64_t to_stride) {
  const hn::CappedTag<T, 16 / sizeof(T)> d;
  if constexpr (sizeof(T) == 4) {
    const hn::RepartitionToWide<decltype(d)> wide;
    for (int64_t r = 0; r < rows; r += 4) {
      for (int64_t c = 0; c < columns; c += 4) {
        const T* source = from + r * from_stride + c;
        const auto row0 = hn::LoadU(d, source), row1 = hn::LoadU(d, source + from_stride);
        const auto row2 = hn::LoadU(d, source + 2 * from_stride),
                   row3 = hn::LoadU(d, source + 3 * from_stride);
        const auto low01 = hn::BitCast(wide, hn::InterleaveLower(d, row0, row1));
        const auto low23 = hn::BitCast(wide, hn::InterleaveLower(d, row2, row3));
        const auto high01 = hn::BitCast(wide, hn::InterleaveUpper(d, row0, row1));
        const auto high23 = hn::BitCast(wide, hn::InterleaveUpper(d, row2, row3));
        T* target = to + c * to_stride + r;
        hn::StoreU(hn::BitCast(d, hn::InterleaveLower(wide, low01, low23)), d, target);
        hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(wide, low01, low23)), d, target + to_stride);
        hn::StoreU(hn::BitCast(d, hn::InterleaveLower(wide, high01, high23)), d,
                   target + 2 * to_stride);
        hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(wide, high01, high23)), d,
                   target + 3 * to_stride);
      }
    }
  } else {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) to[c * to_stride + r] = from[r * from_stride + c];
    }
  }
}

}  // namespace fmmformer::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // FMMFORMER_PRODUCTS_INL_H_
