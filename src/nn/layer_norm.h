// SPDX-License-Identifier: Apache-2.0
// LayerNorm over the last dimension: own kernels on a GPU, torch's elsewhere.
#pragma once

#include <ATen/core/Tensor.h>

#include "fmmformer/nn/layers.h"

namespace fmmformer {

/// x [..., width]; weight and bias [width].
at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      double eps);
TwoUses layer_norm_twice(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         double eps);
NormAndInput layer_norm_beside(const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& bias, double eps);

}  // namespace fmmformer
