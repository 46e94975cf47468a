// SPDX-License-Identifier: Apache-2.0
// How the kernels of this folder see tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include "nn/cuda/element.h"

namespace fmmformer::cuda {

inline bool is_element(at::ScalarType type) {
  return type == at::kFloat || type == at::kBFloat16 || type == at::kHalf;
}

inline Element element_of(at::ScalarType type) {
  return type == at::kBFloat16 ? Element::kBFloat16
         : type == at::kHalf   ? Element::kHalf
                               : Element::kFloat;
}

inline const void* data_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr() : nullptr;
}

}  // namespace fmmformer::cuda
