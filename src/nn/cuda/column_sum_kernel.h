// SPDX-License-Identifier: Apache-2.0
// The sum over the rows of a matrix: what a bias gets from backward. Alone, of up to three at once,
// or in passing while a sweep of dropout's backward makes that matrix. No torch here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "nn/cuda/dropout_kernel.h"
#include "nn/cuda/element.h"
#include "nn/cuda/partial_sums.h"

namespace fmmformer::cuda {

struct ColumnSum {
  Element element = Element::kFloat;  // of the matrices, all contiguous [rows, columns]
  int64_t rows = 0;
  int64_t columns = 0;
  int matrices = 1;  // more than one: column_sum() alone
  const void* x[kMostSums] = {};
  const void* other = nullptr;    // what relu gave, or what gelu was given without its bias
  const void* bias = nullptr;     // [columns], gelu's
  const float* weight = nullptr;  // [columns], of column_sum_of_weighted_gradient
  void* out = nullptr;            // the matrix that is summed, where it is made in passing
  float* partials = nullptr;      // [column_sum_parts(rows, columns), matrices, columns] to work in
  Element sum_element = Element::kFloat;
  void* sum[kMostSums] = {};  // [columns] each
};

int64_t column_sum_parts(int64_t rows, int64_t columns);

/// Of every x.
cudaError_t column_sum(const ColumnSum& arguments, cudaStream_t on);

/// Whether those below take these: columns in groups of eight, and aligned memory.
bool sums_in_passing(const ColumnSum& arguments);
/// Of out = dropout_multiply(x).
cudaError_t column_sum_of_multiply(const DropoutStream& stream, const ColumnSum& arguments,
                                   cudaStream_t on);
/// Of out = dropout_relu_gradient(x, other).
cudaError_t column_sum_of_relu_gradient(double probability, const ColumnSum& arguments,
                                        cudaStream_t on);

/// Of out = x f gelu'(other + bias), the gradient of dropout_gelu.
cudaError_t column_sum_of_gelu_gradient(const DropoutStream& stream, const ColumnSum& arguments,
                                        cudaStream_t on);

/// out = x weight; the sum is that of x other, what the weight gets.
cudaError_t column_sum_of_weighted_gradient(const ColumnSum& arguments, cudaStream_t on);

}  // namespace fmmformer::cuda
