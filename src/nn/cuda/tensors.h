// SPDX-License-Identifier: Apache-2.0
// How the kernels of this folder see tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include "fmmformer/nn/dropout.h"
#include "nn/cuda/dropout_kernel.h"
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

/// seed: as in Pass; may be undefined when nothing is dropped.
inline DropoutStream stream_of(const DropoutSite& site, const at::Tensor& seed) {
  return {.seed = site.probability > 0 ? seed.const_data_ptr<int64_t>() : nullptr,
          .site = static_cast<uint32_t>(site.site),
          .probability = site.probability};
}

inline const void* data_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr() : nullptr;
}

}  // namespace fmmformer::cuda
