// SPDX-License-Identifier: Apache-2.0
// Tensors to the kernels of a weighted field, on the current stream and without waiting.
#pragma once

#include <ATen/core/Tensor.h>

namespace fmmformer::cuda {

/// Whether the functions below take these: fp32, bf16 or fp16 on a GPU, contiguous and aligned,
/// with an fp32 weight for each of the last two dimensions' channels, in groups of eight.
bool has_weighted_field_kernel(const at::Tensor& rest, const at::Tensor& field,
                               const at::Tensor& weight);

/// rest + weight field, [.., heads, channels]; weight: [heads, channels].
at::Tensor add_weighted_field(const at::Tensor& rest, const at::Tensor& field,
                              const at::Tensor& weight);

struct WeightedFieldGradients {
  at::Tensor field, weight;
};
WeightedFieldGradients weighted_field_gradients(const at::Tensor& grad, const at::Tensor& field,
                                                const at::Tensor& weight);

}  // namespace fmmformer::cuda
