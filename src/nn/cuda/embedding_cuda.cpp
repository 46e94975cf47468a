// SPDX-License-Identifier: Apache-2.0
#include "nn/cuda/embedding_cuda.h"

#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "nn/cuda/embedding_kernel.h"
#include "nn/cuda/tensors.h"

namespace fmmformer::cuda {

using at::Tensor;

bool has_embedding_kernel(const Tensor& table, const Tensor& tokens, const Tensor& positions) {
  const auto fits = [](const Tensor& tensor) {
    return tensor.is_contiguous() && is_aligned(tensor.const_data_ptr());
  };
  return table.is_cuda() && is_element(table.scalar_type()) && has_whole_rows(table.size(1)) &&
         fits(table) && tokens.scalar_type() == at::kLong && tokens.device() == table.device() &&
         (!positions.defined() || (positions.scalar_type() == table.scalar_type() &&
                                   positions.device() == table.device() && fits(positions)));
}

Tensor embedded_tokens(const EmbeddedTensors& tensors, const DropoutSite& site,
                       const Tensor& seed) {
  const c10::cuda::CUDAGuard device(tensors.table.device());
  const Tensor tokens = tensors.tokens.contiguous();
  const int64_t columns = tensors.table.size(1);
  const Tensor out = at::empty({tokens.size(0), tokens.size(1), columns}, tensors.table.options());
  C10_CUDA_CHECK(embed_tokens(stream_of(site, seed),
                              {.element = element_of(tensors.table.scalar_type()),
                               .tokens = tokens.numel(),
                               .length = tokens.size(1),
                               .vocabulary = tensors.table.size(0),
                               .columns = columns,
                               .token = tokens.const_data_ptr<int64_t>(),
                               .table = tensors.table.const_data_ptr(),
                               .positions = data_or_null(tensors.positions),
                               .scale = static_cast<float>(tensors.scale),
                               .out = out.mutable_data_ptr()},
                              c10::cuda::getCurrentCUDAStream()));
  return out;
}

bool has_embedding_gradient(const Tensor& grad, int64_t vocabulary) {
  return grad.is_cuda() && grad.scalar_type() == at::kBFloat16 && grad.dim() > 0 &&
         has_gradient_kernel(vocabulary, grad.size(-1));
}

Tensor embedding_gradient(const Tensor& any, const Tensor& indices, int64_t vocabulary) {
  const c10::cuda::CUDAGuard device(any.device());
  Tensor grad = any.contiguous();
  if (!is_aligned(grad.const_data_ptr())) grad = grad.clone();
  const Tensor tokens = indices.contiguous();
  const int64_t columns = grad.size(-1);
  const Tensor sum = at::empty({vocabulary, columns}, grad.options());
  const Tensor partials =
      at::empty({embedding_parts(tokens.numel(), vocabulary, columns), vocabulary, columns},
                grad.options().dtype(at::kFloat));
  C10_CUDA_CHECK(embedding_gradient({.tokens = tokens.numel(),
                                     .vocabulary = vocabulary,
                                     .columns = columns,
                                     .token = tokens.const_data_ptr<int64_t>(),
                                     .grad = grad.const_data_ptr(),
                                     .partials = partials.mutable_data_ptr<float>(),
                                     .sum_element = element_of(grad.scalar_type()),
                                     .sum = sum.mutable_data_ptr()},
                                    c10::cuda::getCurrentCUDAStream()));
  return sum;
}

}  // namespace fmmformer::cuda
