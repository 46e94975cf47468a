// SPDX-License-Identifier: Apache-2.0
// Linear maps of one x. Where there is a kernel for it (a GPU), backward sums the gradient of a
// bias faster than torch, and the products of several maps add up the gradient of x themselves. A
// single row without gradients, as decoding has it, is a kernel of our own on the CPU: the BLAS
// that torch carries takes five times as long on machines that it was not made for.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>

namespace fmmformer {

struct LinearMap {
  at::Tensor weight;  // [out, in]
  at::Tensor bias;    // [out], or undefined
};

/// x [..., in] -> x weight^T + bias [..., out]
at::Tensor linear(const at::Tensor& x, const LinearMap& map);
std::array<at::Tensor, 3> linear_thrice(const at::Tensor& x, const std::array<LinearMap, 3>& maps);

}  // namespace fmmformer
