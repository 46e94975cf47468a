// SPDX-License-Identifier: Apache-2.0
// Products of a warp's sixteen rows with tiles in shared memory, and sixteen rows of a state.
#pragma once

#include "attention/fast_weight/cuda/tiles.cuh"

namespace fmmformer::cuda::fast_weight {

/// A tile of sixteen rows; kTransposed: stored as [columns][sixteen].
template <int kStride_, bool kTransposed_ = false>
struct Rows {
  static constexpr int kStride = kStride_;
  static constexpr bool kTransposed = kTransposed_;
  const float* tile;
};

/// C[16, 16] += A B^T, for tiles with 16 steps columns.
template <typename Math, typename RowsA, typename RowsB>
__device__ __forceinline__ void add_rows_product(float (&c)[2][4], RowsA a, RowsB b, int steps) {
#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
    typename Math::A left;
    if constexpr (RowsA::kTransposed) {
      left = Math::load_columns_a(a.tile + s * 16 * RowsA::kStride, RowsA::kStride);
    } else {
      left = Math::load_rows_a(a.tile + s * 16, RowsA::kStride);
    }
    typename Math::B right[2];
    if constexpr (RowsB::kTransposed) {
      Math::load_columns_b(right, b.tile + s * 16 * RowsB::kStride, RowsB::kStride);
    } else {
      Math::load_rows_b(right, b.tile + s * 16, RowsB::kStride);
    }
    Math::multiply(c[0], left, right[0]);
    Math::multiply(c[1], left, right[1]);
  }
}

/// Column minus row of element `i` of column tile n of a C[16, 16].
__device__ __forceinline__ int off_diagonal(int n, int i) {
  return lane_id() % 4 * 2 - lane_id() / 4 + n * 8 + i % 2 - i / 2 * 8;
}
/// Clears what lies more than `above` columns right of the diagonal.
__device__ __forceinline__ void keep_lower(float (&c)[2][4], int above) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (off_diagonal(n, i) > above) c[n][i] = 0.f;
    }
  }
}
/// ... or less than `right`.
__device__ __forceinline__ void keep_upper(float (&c)[2][4], int right) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (off_diagonal(n, i) < right) c[n][i] = 0.f;
    }
  }
}

/// body(row, column, element) for the lane's elements of C[16, 16], by pairs of columns.
template <typename C, typename Body>
__device__ __forceinline__ void each_pair(C& c, const Body& body) {
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int r = 0; r < 2; ++r)
      body(lane_id() / 4 + 8 * r, n * 8 + lane_id() % 4 * 2, c[n][2 * r], c[n][2 * r + 1]);
  }
}
/// C[16, 16] as a tile of operands.
template <typename Math, int kStride = kSquareStride>
__device__ __forceinline__ void store_square(float* tile, const float (&c)[2][4]) {
  each_pair(c, [&](int row, int column, float first, float second) {
    *reinterpret_cast<float2*>(tile + row * kStride + column) =
        make_float2(Math::operand(first), Math::operand(second));
  });
}

/// Sums over the rows g and g + 8 of C[16, 16], in every lane of a quad.
__device__ __forceinline__ void add_row_sums(float (&sums)[2], const float (&c)[2][4]) {
#pragma unroll
  for (int r = 0; r < 2; ++r)
    sums[r] += quad_sum(c[0][2 * r] + c[0][2 * r + 1] + c[1][2 * r] + c[1][2 * r + 1]);
}
/// <row, vector> of the rows g and g + 8 of a tile.
template <typename RowsX>
__device__ __forceinline__ void row_dots(float (&dots)[2], RowsX rows, const float* vector,
                                         int columns) {
  const float* at = rows.tile + lane_id() / 4 * RowsX::kStride;
  dots[0] = dots[1] = 0.f;
#pragma unroll 2
  for (int c = lane_id() % 4 * 2; c < columns; c += 8) {
    const float2 z = *reinterpret_cast<const float2*>(vector + c),
                 x = *reinterpret_cast<const float2*>(at + c),
                 y = *reinterpret_cast<const float2*>(at + 8 * RowsX::kStride + c);
    dots[0] += x.x * z.x + x.y * z.y, dots[1] += y.x * z.x + y.y * z.y;
  }
  dots[0] = quad_sum(dots[0]), dots[1] = quad_sum(dots[1]);
}

/// C[16, 16] as an operand.
template <typename Math>
__device__ __forceinline__ typename Math::A as_operand(const float (&c)[2][4]) {
  return Math::make_a({c[0][0], c[0][1], c[0][2], c[0][3], c[1][0], c[1][1], c[1][2], c[1][3]});
}

/// Sixteen rows of a state with up to kDim columns, as the C tiles of a product; `steps`: sixteens
/// of columns in use.
template <typename Math, int kDim>
struct StateRows {
  float sums[kDim / 8][4];
  int steps;

  __device__ explicit StateRows(int columns) : steps(by_sixteen(columns) / 16) { clear(sums); }

  __device__ __forceinline__ typename Math::A operand(int s) const {
    const float(&a)[4] = sums[2 * s], (&b)[4] = sums[2 * s + 1];
    return Math::make_a({a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]});
  }
  /// body(s) for the sixteens of columns in use, unrolled: registers are found by constants alone.
  template <typename Body>
  __device__ __forceinline__ void each_step(const Body& body) const {
#pragma unroll
    for (int s = 0; s < kDim / 16; ++s) {
      if (s < steps) body(s);
    }
  }
  /// state += A B, B[16, columns] a tile of sixteen rows.
  template <typename RowsB>
  __device__ __forceinline__ void add(const typename Math::A& a, RowsB b) {
#pragma unroll
    for (int s = 0; s < kDim / 16; ++s) {
      if (s >= steps) break;
      typename Math::B right[2];
      if constexpr (RowsB::kTransposed) {
        Math::load_b(right, b.tile + s * 16 * RowsB::kStride, RowsB::kStride);
      } else {
        Math::load_b_transposed(right, b.tile + s * 16, RowsB::kStride);
      }
      Math::multiply(sums[2 * s], a, right[0]);
      Math::multiply(sums[2 * s + 1], a, right[1]);
    }
  }
  /// body(row of sixteen, column, number) for the lane's part.
  template <typename Body>
  __device__ void each(const Body& body) {
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      if (n / 2 >= steps) break;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        body(lane_id() / 4 + i / 2 * 8, n * 8 + lane_id() % 4 * 2 + i % 2, sums[n][i]);
    }
  }
};

}  // namespace fmmformer::cuda::fast_weight
