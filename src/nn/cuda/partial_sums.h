// SPDX-License-Identifier: Apache-2.0
// The second half of every sum over the rows of a matrix: thread blocks leave fp32 sums of their
// rows, and one small kernel adds those in a fixed order. No atomics, so the same bits on each run;
// how rows are cut depends on the shape alone, so also on each GPU. No torch here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "nn/cuda/element.h"

namespace fmmformer::cuda {

constexpr int kMostSums = 3;

struct PartialSums {
  const float* partials = nullptr;  // [parts, sums, width]
  int64_t parts = 0;
  int sums = 1;
  int64_t width = 0;
  Element element = Element::kFloat;
  void* out[kMostSums] = {};  // [width] each
};

cudaError_t add_partials(const PartialSums& arguments, cudaStream_t on);

}  // namespace fmmformer::cuda
