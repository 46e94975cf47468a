// SPDX-License-Identifier: Apache-2.0
#include "bench/torch_features.h"

#include <ATen/ATen.h>

#include <cmath>

namespace fmmformer::bench {
namespace {

at::Tensor mapped(const at::Tensor& x, FeatureMap map) {
  switch (map) {
    case FeatureMap::kElu:
      return at::elu(x) + 1;
    case FeatureMap::kEluFlip:
      return at::elu(-x) + 1;
    case FeatureMap::kTanh1:
      return at::tanh(x) + 1;
    case FeatureMap::kTanh:
      return at::tanh(x);
    case FeatureMap::kRelu:
      return at::relu(x);
    case FeatureMap::kSoftplus:
      return at::softplus(x);
    case FeatureMap::kIdentity:
      return x;
  }
  TORCH_INTERNAL_ASSERT(false, "a feature map without torch expression");
}

}  // namespace

at::Tensor torch_features(const at::Tensor& x, FeatureMap map, const FmmOptions& options) {
  const at::Tensor phi = mapped(x, map);
  if (!options.unit_features) return phi;
  const at::Tensor sum = phi.sum(-1, /*keepdim=*/true);
  return phi / sum.masked_fill(sum == 0, 1);  // a sum of 0 means that all of phi is 0: f = 0
}

at::Tensor torch_normaliser(const at::Tensor& row_sums, FeatureMap map, int64_t length,
                            const FmmOptions& options) {
  switch (options.normaliser) {
    case Normaliser::kRowSum: {
      if (!is_signed(map)) return row_sums + options.eps;
      const at::Tensor guard =
          at::copysign(at::full_like(row_sums, options.eps), row_sums.detach());
      return at::where(row_sums.abs() >= options.eps, row_sums, guard);
    }
    case Normaliser::kInvSqrtLength:
      return at::full_like(row_sums, std::sqrt(static_cast<double>(length)));
    case Normaliser::kNone:
      return at::ones_like(row_sums);
  }
  TORCH_INTERNAL_ASSERT(false, "a normaliser without torch expression");
}

}  // namespace fmmformer::bench
