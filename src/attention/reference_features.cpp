// SPDX-License-Identifier: Apache-2.0
#include "attention/reference_features.h"

#include <ATen/ATen.h>

namespace fmmformer {

using at::Tensor;

namespace {

Tensor phi(FeatureMap map, const Tensor& x) {
  const Tensor zero = at::zeros_like(x);
  switch (map) {
    case FeatureMap::kElu:  // exp(x) below 0, x + 1 above; min keeps the branch that is not taken
                            // finite
      return at::where(x > 0, x + 1, at::minimum(x, zero).exp());
    case FeatureMap::kEluFlip:
      return at::where(x < 0, 1 - x, at::minimum(-x, zero).exp());
    case FeatureMap::kTanh1:
      return 2 * at::sigmoid(2 * x);  // = tanh(x) + 1 without cancellation for negative x
    case FeatureMap::kTanh:
      return at::tanh(x);
    case FeatureMap::kRelu:
      return at::relu(x);
    case FeatureMap::kSoftplus:
      return at::logaddexp(x, zero);
    case FeatureMap::kIdentity:
      return x;
  }
  TORCH_INTERNAL_ASSERT(false, "feature map without a definition");
}

}  // namespace

Tensor reference_features(FeatureMap map, bool unit, const Tensor& x) {
  const Tensor value = phi(map, x);
  if (!unit) return value;
  const Tensor sum = value.sum(-1, /*keepdim=*/true);
  const Tensor nonzero = sum != 0;
  return at::where(nonzero, value / at::where(nonzero, sum, at::ones_like(sum)),
                   at::zeros_like(value));
}

Tensor reference_divisor(FeatureMap map, double eps, const Tensor& row_sums) {
  if (!is_signed(map)) return row_sums + eps;
  return at::where(row_sums.abs() > eps, row_sums,
                   at::copysign(at::full_like(row_sums, eps), row_sums.detach()));
}

}  // namespace fmmformer
