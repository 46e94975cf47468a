// SPDX-License-Identifier: Apache-2.0
// Tensors to the kernel of embedding_kernel.h, on the current stream and without waiting.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fmmformer::cuda {

/// Whether the function below takes these: bf16 on a GPU, and a small table.
bool has_embedding_gradient(const at::Tensor& grad, int64_t vocabulary);

/// grad [..., columns] and indices [...] (int64) -> [vocabulary, columns], of grad's type.
at::Tensor embedding_gradient(const at::Tensor& grad, const at::Tensor& indices,
                              int64_t vocabulary);

}  // namespace fmmformer::cuda
