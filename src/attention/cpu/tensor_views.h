// SPDX-License-Identifier: Apache-2.0
// Tensors as the kernels see them.
#pragma once

#include <ATen/core/Tensor.h>

#include "attention/cpu/tile.h"

namespace fmmformer::cpu {

inline View view_of(const at::Tensor& tensor) {
  return {tensor.data_ptr(), tensor.stride(0), tensor.stride(1), tensor.stride(2)};
}

inline Element element_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return Element::kFloat64;
    case at::kFloat:
      return Element::kFloat32;
    case at::kBFloat16:
      return Element::kBFloat16;
    default:
      return Element::kFloat16;
  }
}

}  // namespace fmmformer::cpu
