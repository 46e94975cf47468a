// SPDX-License-Identifier: Apache-2.0
// The sweeps of nn/dropout on the GPU. No torch here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "nn/cuda/element.h"

namespace fmmformer::cuda {

/// Which elements are dropped. The seed lies in device memory and is read when a kernel runs: a
/// captured graph draws new masks in each replay.
struct DropoutStream {
  const int64_t* seed = nullptr;  // may be null when the probability is 0
  uint32_t site = 0;
  double probability = 0;
};

/// Contiguous tensors of one type, computed with in fp32. f is 0 or 1 / (1 - p).
struct DropoutSweep {
  Element element = Element::kFloat;
  int64_t elements = 0;
  const void* x = nullptr;
  const void* bias = nullptr;  // [columns], added to every row of x; or null
  int64_t columns = 1;
  const void* other = nullptr;  // the residual, or what relu gave
  void* out = nullptr;          // may be x
};

cudaError_t dropout_multiply(const DropoutStream& stream, const DropoutSweep& sweep,
                             cudaStream_t on);  // x f
cudaError_t dropout_add(const DropoutStream& stream, const DropoutSweep& sweep,
                        cudaStream_t on);  // other + (x + bias) f
cudaError_t dropout_relu(const DropoutStream& stream, const DropoutSweep& sweep,
                         cudaStream_t on);  // max(x + bias, 0) f
cudaError_t dropout_gelu(const DropoutStream& stream, const DropoutSweep& sweep,
                         cudaStream_t on);  // gelu(x + bias) f, gelu as erf has it
/// Backward of dropout_relu: x / (1 - p) where other > 0, else 0. Needs no mask, so no seed.
cudaError_t dropout_relu_gradient(const DropoutStream& stream, const DropoutSweep& sweep,
                                  cudaStream_t on);

}  // namespace fmmformer::cuda
