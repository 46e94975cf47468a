// SPDX-License-Identifier: Apache-2.0
// LayerNorm on the GPU, a row at a time and forward and backward each in one sweep. No torch here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "nn/cuda/element.h"

namespace fmmformer::cuda {

constexpr int64_t kMostNormWidth = 8192;  // a row lies in the registers of a thread block

/// A contiguous [rows, width] matrix and the parameters [width].
struct NormRows {
  Element element = Element::kFloat;  // of all matrices
  // Of weight and bias and their gradients: fp32, or that of the matrices.
  Element parameter = Element::kFloat;
  int64_t rows = 0;
  int64_t width = 0;  // 1..kMostNormWidth
  const void* x = nullptr;
  const void* weight = nullptr;
  float* mean = nullptr;   // [rows]
  float* scale = nullptr;  // [rows], 1 / sqrt(variance + eps)
};

/// out = (x - mean) scale weight + bias; also leaves mean and scale.
struct NormForward {
  NormRows rows;
  const void* bias = nullptr;
  float eps = 0;
  void* out = nullptr;
};
cudaError_t layer_norm_forward(const NormForward& arguments, cudaStream_t on);

/// The gradient of the output is grad, or grad + other_grad; input_grad, if there is one, is added
/// to that of x.
struct NormBackward {
  NormRows rows;
  const void* grad = nullptr;
  const void* other_grad = nullptr;  // or null
  const void* input_grad = nullptr;  // or null
  void* grad_x = nullptr;
  float* partials = nullptr;  // [norm_parts(rows, width), 2, width] to work in
  void* grad_weight = nullptr;
  void* grad_bias = nullptr;
};
int64_t norm_parts(int64_t rows, int64_t width);
cudaError_t layer_norm_backward(const NormBackward& arguments, cudaStream_t on);

}  // namespace fmmformer::cuda
