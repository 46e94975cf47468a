// SPDX-License-Identifier: Apache-2.0
// The feature maps as the references have them: plain torch operations, no line of the kernels'.
#pragma once

#include <ATen/core/Tensor.h>

#include "fmmformer/attention/options.h"

namespace fmmformer {

/// f(x) over the last dimension: phi(x), or with `unit` phi(x) / sum phi(x) (0 where that sum is
/// 0).
at::Tensor reference_features(FeatureMap map, bool unit, const at::Tensor& x);

/// What a row sum becomes as a divisor: s + eps; for signed maps s where |s| > eps, else
/// copysign(eps, s), without gradient there.
at::Tensor reference_divisor(FeatureMap map, double eps, const at::Tensor& row_sums);

}  // namespace fmmformer
