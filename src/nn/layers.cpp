// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/nn/layers.h"

#include <ATen/ATen.h>

#include "nn/layer_norm.h"
#include "nn/linear.h"

namespace fmmformer {

using at::Tensor;

namespace {

constexpr double kNormEps = 1e-5;

}  // namespace

Linear::Linear(int64_t in, int64_t out, bool with_bias) {
  weight = register_parameter("weight", at::zeros({out, in}));
  if (with_bias) bias = register_parameter("bias", at::zeros({out}));
}

Tensor Linear::forward(const Tensor& x) const { return linear(x, {weight, bias}); }

Tensor Linear::product(const Tensor& x) const {
  return x.size(0) == 1 ? linear(x, {weight, Tensor()}) : at::mm(x, weight.t());
}

LayerNorm::LayerNorm(int64_t dim) {
  weight = register_parameter("weight", at::ones({dim}));
  bias = register_parameter("bias", at::zeros({dim}));
}

Tensor LayerNorm::forward(const Tensor& x) const { return layer_norm(x, weight, bias, kNormEps); }

TwoUses LayerNorm::forward_twice(const Tensor& x) const {
  return layer_norm_twice(x, weight, bias, kNormEps);
}

NormAndInput LayerNorm::forward_beside(const Tensor& x) const {
  return layer_norm_beside(x, weight, bias, kNormEps);
}

}  // namespace fmmformer
