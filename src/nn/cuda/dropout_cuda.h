// SPDX-License-Identifier: Apache-2.0
// Tensors to the sweeps of dropout_kernel.h, on the current stream and without waiting. A build
// without CUDA links without_cuda.cpp instead, which has no kernel for anything.
#pragma once

#include <ATen/core/Tensor.h>

#include "fmmformer/nn/dropout.h"

namespace fmmformer::cuda {

/// Whether the functions below take x: fp32, bf16 or fp16 on a GPU.
bool has_dropout_kernel(const at::Tensor& x);

// Tensors are of x's type; bias [last dimension of x] or undefined; seed as in Pass, or undefined
// when the probability is 0.

at::Tensor dropout_multiply(const at::Tensor& x, const DropoutSite& site, const at::Tensor& seed);
/// residual + dropout(x + bias); residual has x's shape.
at::Tensor dropout_add(const at::Tensor& residual, const at::Tensor& x, const at::Tensor& bias,
                       const DropoutSite& site, const at::Tensor& seed);
/// x = dropout(relu(x + bias)); x is contiguous.
void dropout_relu_(const at::Tensor& x, const at::Tensor& bias, const DropoutSite& site,
                   const at::Tensor& seed);
/// dropout(gelu(x + bias)).
at::Tensor dropout_gelu(const at::Tensor& x, const at::Tensor& bias, const DropoutSite& site,
                        const at::Tensor& seed);
/// The gradient of dropout_relu_ in x, from what it left there.
at::Tensor dropout_relu_gradient(const at::Tensor& out, const at::Tensor& grad, double probability);

}  // namespace fmmformer::cuda
