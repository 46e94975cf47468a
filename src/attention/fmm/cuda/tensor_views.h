// SPDX-License-Identifier: Apache-2.0
// Between torch's tensors and the kernels' plain memory.
#pragma once

#include <ATen/ATen.h>

#include "attention/fmm/cuda/sweep.h"
#include "attention/problem.h"

namespace fmmformer::cuda {

inline Element element_of(const char* function, at::ScalarType type) {
  TORCH_CHECK_VALUE(type != at::kDouble, function,
                    ": q is of type Double on a GPU; allowed there are fp32, bf16, fp16; use "
                    "x.float(), or move the "
                    "tensors to the CPU for fp64");
  return type == at::kFloat      ? Element::kFloat32
         : type == at::kBFloat16 ? Element::kBFloat16
                                 : Element::kFloat16;
}

inline int weight_type(at::ScalarType type) {
  return type == at::kFloat ? 0 : type == at::kBFloat16 ? 1 : type == at::kHalf ? 2 : 3;
}

/// Channels [first, ...) of a [batch, length, heads, dim] tensor.
inline View view_of(const at::Tensor& tensor, int64_t first = 0) {
  const int64_t size = tensor.element_size();
  char* data = static_cast<char*>(tensor.data_ptr()) + first * size;
  bool aligned = reinterpret_cast<uintptr_t>(data) % 16 == 0;
  for (int d = 0; d < 3; ++d) aligned &= tensor.stride(d) * size % 16 == 0;
  return {data, tensor.stride(0), tensor.stride(1), tensor.stride(2), aligned};
}

/// A weight as [maps, heads, channels] from channel `first` on, with stride 0 where it has one
/// number for many.
inline Weight weight_view(const std::optional<at::Tensor>& weight, int64_t first = 0) {
  if (!weight) return {};
  const WeightStrides strides = weight_strides(*weight);
  const char* data = static_cast<const char*>(weight->data_ptr()) +
                     strides.channel * first * weight->element_size();
  return {data, weight_type(weight->scalar_type()), strides.map, strides.head, strides.channel};
}

/// A weight's own shape as [maps, heads, channels], for its gradient.
inline WeightGradient gradient_view(const std::optional<at::Tensor>& weight,
                                    const at::Tensor& gradient) {
  if (!weight || gradient.numel() == 0) return {};
  const auto size = [&](int64_t from_the_end) {
    return weight->dim() >= from_the_end ? weight->size(-from_the_end) : 1;
  };
  return {gradient.data_ptr(), weight_type(gradient.scalar_type()), size(3), size(2), size(1)};
}

}  // namespace fmmformer::cuda
