// SPDX-License-Identifier: Apache-2.0
// out = rest + weight field, with a weight a column. No torch here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "nn/cuda/element.h"

namespace fmmformer::cuda {

struct WeightedField {
  Element element = Element::kFloat;  // of rest, field and out, all contiguous [rows, columns]
  int64_t rows = 0;
  int64_t columns = 0;  // a multiple of eight
  const void* rest = nullptr;
  const void* field = nullptr;
  const float* weight = nullptr;  // [columns]
  void* out = nullptr;
};

cudaError_t add_weighted_field(const WeightedField& arguments, cudaStream_t on);

}  // namespace fmmformer::cuda
