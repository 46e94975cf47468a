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

bool has_embedding_gradient(const Tensor& grad, int64_t vocabulary) {
  return grad.is_cuda() && grad.scalar_type() == at::kBFloat16 && grad.dim() > 0 &&
         has_embedding_kernel(vocabulary, grad.size(-1));
}

Tensor embedding_gradient(const Tensor& any, const Tensor& indices, int64_t vocabulary) {
  const c10::cuda::CUDAGuard device(any.device());
  Tensor grad = any.contiguous();
  if (reinterpret_cast<uintptr_t>(grad.const_data_ptr()) % 16 != 0) grad = grad.clone();
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
