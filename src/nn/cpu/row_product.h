// SPDX-License-Identifier: Apache-2.0
// A matrix times one vector: plain C++ and Highway, no torch.
#pragma once

#include <cstdint>

namespace fmmformer::cpu {

/// Rows that follow each other, [rows, columns].
struct RowMatrix {
  const float* values = nullptr;
  int64_t columns = 0;
};

/// out[i] = <row i, x> + bias[i] for rows begin .. end - 1. Reading the matrix is the whole cost; a
/// row's sum does not depend on which others are computed with it.
void row_product(const RowMatrix& matrix, const float* x, const float* bias, int64_t begin,
                 int64_t end, float* out);  // bias may be none

}  // namespace fmmformer::cpu
