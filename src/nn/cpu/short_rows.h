// SPDX-License-Identifier: Apache-2.0
// A matrix in 8 bits, and what its product with a vector cannot exceed: a fourth of the bytes says
// which rows are worth reading in full. Plain C++ and Highway, no torch.
#pragma once

#include <cstdint>

#include "nn/cpu/row_product.h"

namespace fmmformer::cpu {

/// row i = scales[i] values[i] + a rest whose norm is at most errors[i]. errors also cover what
/// rounding adds to a product, of this row or of the one it stands for.
struct ShortRows {
  int8_t* values = nullptr;  // [rows, columns]
  float* scales = nullptr;   // [rows]
  float* errors = nullptr;   // [rows]
  int64_t columns = 0;
};

/// Fills rows begin .. end - 1.
void shorten_rows(const RowMatrix& matrix, int64_t begin, int64_t end, const ShortRows& to);

struct ProductBounds {
  float* low = nullptr;
  float* high = nullptr;
};

/// low[i] <= what row_product makes of the matrix <= high[i], for rows begin .. end - 1: by Cauchy
/// and Schwarz, |<rest, x>| <= |rest| |x|. x_norm: |x|, not less.
void bound_row_product(const ShortRows& rows, const float* x, float x_norm, const float* bias,
                       int64_t begin, int64_t end, const ProductBounds& out);

}  // namespace fmmformer::cpu
