// SPDX-License-Identifier: Apache-2.0
// Tensors to the kernels of column_sum_kernel.h, on the current stream and without waiting.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "fmmformer/nn/dropout.h"

namespace fmmformer::cuda {

/// Whether the functions below take x: fp32, bf16 or fp16 on a GPU, and sums of such a type.
bool has_column_sum_kernel(const at::Tensor& x, at::ScalarType sum_type);

/// x [..., columns] -> [columns], in a fixed order.
at::Tensor column_sum(const at::Tensor& x, at::ScalarType sum_type);
/// Of one to three matrices of one shape and type.
std::vector<at::Tensor> column_sums(at::TensorList matrices, at::ScalarType sum_type);

/// A matrix like the gradient it is made from, and the sum of its columns.
struct Summed {
  at::Tensor matrix, sum;
};
/// As the functions of dropout_cuda.h.
Summed dropout_multiply_and_sum(const at::Tensor& x, const DropoutSite& site,
                                const at::Tensor& seed, at::ScalarType sum_type);
Summed dropout_relu_gradient_and_sum(const at::Tensor& out, const at::Tensor& grad,
                                     double probability, at::ScalarType sum_type);

/// x is what gelu was given, without the bias; columns in groups of eight (fits_gelu_gradient).
bool fits_gelu_gradient(const at::Tensor& x, const at::Tensor& bias);
Summed dropout_gelu_gradient_and_sum(const at::Tensor& x, const at::Tensor& bias,
                                     const at::Tensor& grad, const DropoutSite& site,
                                     const at::Tensor& seed);

/// grad weight, and the sum of grad field over all rows of weight's size; contiguous and aligned,
/// the weight fp32, its size a multiple of eight.
Summed weighted_gradient_and_sum(const at::Tensor& grad, const at::Tensor& field,
                                 const at::Tensor& weight);

}  // namespace fmmformer::cuda
