// SPDX-License-Identifier: Apache-2.0
#include "nn/cuda/weighted_field_cuda.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "nn/cuda/column_sum_cuda.h"
#include "nn/cuda/tensors.h"
#include "nn/cuda/weighted_field_kernel.h"

namespace fmmformer::cuda {

using at::Tensor;

namespace {

bool is_plain(const Tensor& x) {
  return x.is_contiguous() && reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
}
Tensor plain(const Tensor& x) { return is_plain(x) ? x : x.clone(at::MemoryFormat::Contiguous); }

}  // namespace

bool has_weighted_field_kernel(const Tensor& rest, const Tensor& field, const Tensor& weight) {
  return field.is_cuda() && is_element(field.scalar_type()) && rest.sizes() == field.sizes() &&
         rest.scalar_type() == field.scalar_type() && rest.device() == field.device() &&
         is_plain(rest) && is_plain(field) && weight.scalar_type() == at::kFloat &&
         weight.device() == field.device() && field.dim() >= 2 && weight.dim() == 2 &&
         weight.sizes() == field.sizes().slice(field.dim() - 2) && weight.numel() % 8 == 0 &&
         field.numel() > 0;
}

Tensor add_weighted_field(const Tensor& rest, const Tensor& field, const Tensor& some_weight) {
  const c10::cuda::CUDAGuard device(field.device());
  const Tensor weight = some_weight.contiguous(), out = at::empty_like(field);
  C10_CUDA_CHECK(add_weighted_field(
      WeightedField{.element = element_of(field.scalar_type()),
                    .rows = weight.numel() > 0 ? field.numel() / weight.numel() : 0,
                    .columns = weight.numel(),
                    .rest = rest.const_data_ptr(),
                    .field = field.const_data_ptr(),
                    .weight = weight.const_data_ptr<float>(),
                    .out = out.mutable_data_ptr()},
      c10::cuda::getCurrentCUDAStream()));
  return out;
}

WeightedFieldGradients weighted_field_gradients(const Tensor& grad, const Tensor& field,
                                                const Tensor& weight) {
  const Summed made = weighted_gradient_and_sum(plain(grad), field, weight.contiguous());
  return {made.matrix, made.sum.view(weight.sizes())};
}

}  // namespace fmmformer::cuda
