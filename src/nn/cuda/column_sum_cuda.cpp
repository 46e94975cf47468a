// SPDX-License-Identifier: Apache-2.0
#include "nn/cuda/column_sum_cuda.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "nn/cuda/column_sum_kernel.h"
#include "nn/cuda/dropout_cuda.h"
#include "nn/cuda/tensors.h"

namespace fmmformer::cuda {

using at::Tensor;

namespace {

/// What sums of columns need, and the tensors that hold it.
struct Prepared {
  std::vector<Tensor> sums;
  Tensor partials;
  ColumnSum arguments;
};

/// Of contiguous matrices of one shape and type.
Prepared prepared(at::TensorList matrices, at::ScalarType sum_type) {
  const Tensor& first = matrices[0];
  const int64_t columns = first.size(-1), rows = columns > 0 ? first.numel() / columns : 0;
  const auto count = static_cast<int64_t>(matrices.size());
  Prepared result{.partials = at::empty({column_sum_parts(rows, columns), count, columns},
                                        first.options().dtype(at::kFloat))};
  result.arguments = {.element = element_of(first.scalar_type()),
                      .rows = rows,
                      .columns = columns,
                      .matrices = static_cast<int>(count),
                      .partials = result.partials.mutable_data_ptr<float>(),
                      .sum_element = element_of(sum_type)};
  for (size_t m = 0; m < matrices.size(); ++m) {
    result.sums.push_back(at::empty({columns}, first.options().dtype(sum_type)));
    result.arguments.x[m] = matrices[m].const_data_ptr();
    result.arguments.sum[m] = result.sums[m].mutable_data_ptr();
  }
  return result;
}

}  // namespace

bool has_column_sum_kernel(const Tensor& x, at::ScalarType sum_type) {
  return x.is_cuda() && x.dim() > 0 && is_element(x.scalar_type()) && is_element(sum_type);
}

std::vector<Tensor> column_sums(at::TensorList any, at::ScalarType sum_type) {
  TORCH_INTERNAL_ASSERT(!any.empty() && any.size() <= kMostSums);
  const c10::cuda::CUDAGuard device(any[0].device());
  std::vector<Tensor> matrices;
  for (const Tensor& one : any) matrices.push_back(one.contiguous());
  const Prepared work = prepared(matrices, sum_type);
  C10_CUDA_CHECK(column_sum(work.arguments, c10::cuda::getCurrentCUDAStream()));
  return work.sums;
}

Tensor column_sum(const Tensor& x, at::ScalarType sum_type) {
  return column_sums({x}, sum_type)[0];
}

Summed dropout_multiply_and_sum(const Tensor& any, const DropoutSite& site, const Tensor& seed,
                                at::ScalarType sum_type) {
  const c10::cuda::CUDAGuard device(any.device());
  const Tensor x = any.contiguous();
  const Tensor out = at::empty_like(x);
  Prepared work = prepared({x}, sum_type);
  work.arguments.out = out.mutable_data_ptr();
  if (!sums_in_passing(work.arguments)) {
    const Tensor product = dropout_multiply(x, site, seed);
    return {product, column_sum(product, sum_type)};
  }
  C10_CUDA_CHECK(column_sum_of_multiply(stream_of(site, seed), work.arguments,
                                        c10::cuda::getCurrentCUDAStream()));
  return {out, work.sums[0]};
}

Summed dropout_relu_gradient_and_sum(const Tensor& any_out, const Tensor& any, double probability,
                                     at::ScalarType sum_type) {
  const c10::cuda::CUDAGuard device(any.device());
  const Tensor grad = any.contiguous(), out = any_out.contiguous();
  const Tensor result = at::empty_like(grad);
  Prepared work = prepared({grad}, sum_type);
  work.arguments.other = out.const_data_ptr();
  work.arguments.out = result.mutable_data_ptr();
  if (!sums_in_passing(work.arguments)) {
    const Tensor gradient = dropout_relu_gradient(out, grad, probability);
    return {gradient, column_sum(gradient, sum_type)};
  }
  C10_CUDA_CHECK(
      column_sum_of_relu_gradient(probability, work.arguments, c10::cuda::getCurrentCUDAStream()));
  return {result, work.sums[0]};
}

bool fits_gelu_gradient(const Tensor& x, const Tensor& bias) {
  return bias.defined() && has_column_sum_kernel(x, bias.scalar_type()) && x.is_contiguous() &&
         bias.is_contiguous() &&
         sums_in_passing(
             {.columns = x.size(-1), .x = {x.const_data_ptr()}, .bias = bias.const_data_ptr()});
}

Summed dropout_gelu_gradient_and_sum(const Tensor& x, const Tensor& bias, const Tensor& any,
                                     const DropoutSite& site, const Tensor& seed) {
  const c10::cuda::CUDAGuard device(any.device());
  Tensor grad = any.contiguous();
  if (reinterpret_cast<uintptr_t>(grad.const_data_ptr()) % 16 != 0) grad = grad.clone();
  const Tensor result = at::empty_like(grad);
  Prepared work = prepared({grad}, bias.scalar_type());
  work.arguments.other = x.const_data_ptr();
  work.arguments.bias = bias.const_data_ptr();
  work.arguments.out = result.mutable_data_ptr();
  C10_CUDA_CHECK(column_sum_of_gelu_gradient(stream_of(site, seed), work.arguments,
                                             c10::cuda::getCurrentCUDAStream()));
  return {result, work.sums[0]};
}

Summed weighted_gradient_and_sum(const Tensor& grad, const Tensor& field, const Tensor& weight) {
  const c10::cuda::CUDAGuard device(grad.device());
  const Tensor rows = grad.view({-1, weight.numel()}), result = at::empty_like(grad);
  Prepared work = prepared({rows}, at::kFloat);
  work.arguments.other = field.const_data_ptr();
  work.arguments.weight = weight.const_data_ptr<float>();
  work.arguments.out = result.mutable_data_ptr();
  C10_CUDA_CHECK(
      column_sum_of_weighted_gradient(work.arguments, c10::cuda::getCurrentCUDAStream()));
  return {result, work.sums[0]};
}

}  // namespace fmmformer::cuda
