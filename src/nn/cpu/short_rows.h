// SPDX-License-Identifier: Apache-2.0
// A matrix in 8 bits, and what its product with a vector cannot exceed: a fourth of the bytes says
// which rows are worth reading in full. Plain C++ and Highway, no torch.
#pragma once

#include <cstdint>
#include <vector>

#include "nn/cpu/row_product.h"

namespace fmmformer::cpu {

/// Rows that are computed together, a lane each. As many as the widest vectors have lanes.
inline constexpr int64_t kShortBlock = 16;

/// row i = scales[i] (its values) + a rest whose norm is at most errors[i]. errors also cover what
/// rounding adds to a product, of this row or of the one it stands for.
struct ShortRows {
  ShortRows() = default;
  ShortRows(int64_t rows, int64_t columns);

  std::vector<int8_t> values;  // [blocks][pairs of columns][kShortBlock rows][2]
  std::vector<float> scales, errors;
  int64_t rows = 0, columns = 0;

  int64_t pairs() const { return (columns + 1) / 2; }
};

/// Fills rows begin .. end - 1; begin is a multiple of kShortBlock.
void shorten_rows(const RowMatrix& matrix, int64_t begin, int64_t end, ShortRows& to);

/// x = scale (its values) + a rest of norm `error`; in 16 bits, or fewer where sums would overflow.
struct ShortVector {
  std::vector<int32_t> pairs;  // two values each
  float scale = 0, norm = 0, error = 0;
};
ShortVector shorten(const float* x, int64_t columns);

struct ProductBounds {
  float* low = nullptr;
  float* high = nullptr;
};

/// low[i] <= what row_product makes of the matrix <= high[i], for rows begin .. end - 1 (begin as
/// above): by Cauchy and Schwarz, |<rest, x>| <= |rest| |x|.
void bound_row_product(const ShortRows& rows, const ShortVector& x, const float* bias,
                       int64_t begin, int64_t end, const ProductBounds& out);

}  // namespace fmmformer::cpu
