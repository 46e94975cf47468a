// SPDX-License-Identifier: Apache-2.0
// Tensors to the kernels of layer_norm_kernel.h, on the current stream and without waiting. A build
// without CUDA links without_cuda.cpp instead, which has no kernel for anything.
#pragma once

#include <ATen/core/Tensor.h>

namespace fmmformer::cuda {

/// Whether the functions below take x [..., width]: fp32, bf16 or fp16 on a GPU, in rows that are
/// not too wide; weight and bias [width] of x's type or fp32.
bool has_layer_norm_kernel(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

struct NormResult {
  at::Tensor out;          // like x
  at::Tensor mean, scale;  // [rows] in fp32: what backward needs besides x
};
NormResult layer_norm_forward(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                              double eps);

struct NormGradients {
  at::Tensor x, weight, bias;
};
struct NormSaved {
  at::Tensor x, weight, mean, scale;
};
/// Gradients that come back, each like x; all but the first may be undefined.
struct NormUpstream {
  at::Tensor grad, other;  // of the output; their sum counts
  at::Tensor of_input;     // of x, from another use of it: added to what the norm gives
};
NormGradients layer_norm_backward(const NormSaved& saved, const NormUpstream& upstream);

}  // namespace fmmformer::cuda
