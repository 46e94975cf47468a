// SPDX-License-Identifier: Apache-2.0
// Between torch's tensors and the kernels' plain memory.
#pragma once

#include <ATen/ATen.h>

#include "attention/fmm/cuda/sweep.h"

namespace fmmformer::cuda {

inline Element element_of(const char* function, at::ScalarType type) {
#ifdef FMMFORMER_UNOPTIMIZED_CUDA
  TORCH_WARN_ONCE(
      function,
      ": the CUDA kernels of this build are not optimised (FMMFORMER_CUDA_OPTIMIZE=OFF, "
      "as `make test` builds them where it finds no GPU); `make build` makes good ones");
#endif
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

/// A weight as [maps, heads, channels] from channel `first` on, with stride 0 where it has one
/// number for many.
inline Weight weight_view(const std::optional<at::Tensor>& weight, at::IntArrayRef shape,
                          int64_t first = 0) {
  if (!weight) return {};
  const at::Tensor full = weight->expand(shape);
  const char* data =
      static_cast<const char*>(full.data_ptr()) + full.stride(2) * first * full.element_size();
  return {data, weight_type(full.scalar_type()), full.stride(0), full.stride(1), full.stride(2)};
}

}  // namespace fmmformer::cuda
