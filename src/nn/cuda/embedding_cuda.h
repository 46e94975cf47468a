// SPDX-License-Identifier: Apache-2.0
// Tensors to the kernels of embedding_kernel.h, on the current stream and without waiting.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "fmmformer/nn/dropout.h"

namespace fmmformer::cuda {

struct EmbeddedTensors {
  at::Tensor table;      // [vocabulary, columns]
  at::Tensor tokens;     // int64 [B, N]
  at::Tensor positions;  // [N, columns] of the table's type, or undefined
  double scale = 1;
};

/// Whether the function below takes these, whose shapes are right: fp32, bf16 or fp16 on a GPU,
/// columns in eights.
bool has_embedding_kernel(const at::Tensor& table, const at::Tensor& tokens,
                          const at::Tensor& positions);

/// dropout(scale * rows + positions) [B, N, columns]. The seed may be undefined when nothing is
/// dropped. A token that is not below the vocabulary ends the program's work on this GPU.
at::Tensor embedded_tokens(const EmbeddedTensors& tensors, const DropoutSite& site,
                           const at::Tensor& seed);

/// Whether the function below takes these: bf16 on a GPU, and a small table.
bool has_embedding_gradient(const at::Tensor& grad, int64_t vocabulary);

/// grad [..., columns] and indices [...] (int64) -> [vocabulary, columns], of grad's type.
at::Tensor embedding_gradient(const at::Tensor& grad, const at::Tensor& indices,
                              int64_t vocabulary);

}  // namespace fmmformer::cuda
