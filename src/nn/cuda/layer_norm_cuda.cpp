// SPDX-License-Identifier: Apache-2.0
#include "nn/cuda/layer_norm_cuda.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "nn/cuda/layer_norm_kernel.h"
#include "nn/cuda/tensors.h"

namespace fmmformer::cuda {

using at::Tensor;

namespace {

/// x, weight, mean and scale contiguous.
NormRows rows_of(const NormSaved& saved) {
  const int64_t width = saved.weight.numel();
  return {.element = element_of(saved.x.scalar_type()),
          .parameter = element_of(saved.weight.scalar_type()),
          .rows = saved.x.numel() / width,
          .width = width,
          .x = saved.x.const_data_ptr(),
          .weight = saved.weight.const_data_ptr(),
          .mean = saved.mean.mutable_data_ptr<float>(),
          .scale = saved.scale.mutable_data_ptr<float>()};
}

}  // namespace

bool has_layer_norm_kernel(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const auto fits = [&](const Tensor& parameter) {
    return parameter.device() == x.device() && parameter.is_contiguous() &&
           (parameter.scalar_type() == x.scalar_type() || parameter.scalar_type() == at::kFloat);
  };
  const int64_t width = weight.numel();
  return x.is_cuda() && is_element(x.scalar_type()) && x.dim() > 0 && x.size(-1) == width &&
         width > 0 && width <= kMostNormWidth && fits(weight) && fits(bias) &&
         weight.scalar_type() == bias.scalar_type();
}

NormResult layer_norm_forward(const Tensor& any, const Tensor& weight, const Tensor& bias,
                              double eps) {
  const c10::cuda::CUDAGuard device(any.device());
  const Tensor x = any.contiguous();
  const int64_t rows = x.numel() / weight.numel();
  const auto options = x.options().dtype(at::kFloat);
  NormResult result{at::empty_like(x), at::empty({rows}, options), at::empty({rows}, options)};
  const NormForward arguments{.rows = rows_of({x, weight, result.mean, result.scale}),
                              .bias = bias.const_data_ptr(),
                              .eps = static_cast<float>(eps),
                              .out = result.out.mutable_data_ptr()};
  C10_CUDA_CHECK(layer_norm_forward(arguments, c10::cuda::getCurrentCUDAStream()));
  return result;
}

NormGradients layer_norm_backward(const NormSaved& saved, const NormUpstream& upstream) {
  const c10::cuda::CUDAGuard device(saved.x.device());
  const auto contiguous = [](const Tensor& any) { return any.defined() ? any.contiguous() : any; };
  const Tensor x = saved.x.contiguous(), grad = contiguous(upstream.grad),
               other = contiguous(upstream.other), of_input = contiguous(upstream.of_input);
  const NormRows rows = rows_of({x, saved.weight, saved.mean, saved.scale});
  NormGradients gradients{at::empty_like(x), at::empty_like(saved.weight),
                          at::empty_like(saved.weight)};
  const Tensor partials =
      at::empty({norm_parts(rows.rows, rows.width), 2, rows.width}, x.options().dtype(at::kFloat));
  const NormBackward arguments{.rows = rows,
                               .grad = grad.const_data_ptr(),
                               .other_grad = data_or_null(other),
                               .input_grad = data_or_null(of_input),
                               .grad_x = gradients.x.mutable_data_ptr(),
                               .partials = partials.mutable_data_ptr<float>(),
                               .grad_weight = gradients.weight.mutable_data_ptr(),
                               .grad_bias = gradients.bias.mutable_data_ptr()};
  C10_CUDA_CHECK(layer_norm_backward(arguments, c10::cuda::getCurrentCUDAStream()));
  return gradients;
}

}  // namespace fmmformer::cuda
