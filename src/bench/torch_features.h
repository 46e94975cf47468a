// SPDX-License-Identifier: Apache-2.0
// The far field's parts in plain torch operations, shared by the peers and by plain_torch.
#pragma once

#include <ATen/core/Tensor.h>

#include "fmmformer/attention/options.h"

namespace fmmformer::bench {

/// phi(x), divided by its sum over the last dimension when options.unit_features.
at::Tensor torch_features(const at::Tensor& x, FeatureMap map, const FmmOptions& options);

/// What a far field is divided by, from its row sums.
at::Tensor torch_normaliser(const at::Tensor& row_sums, FeatureMap map, int64_t length,
                            const FmmOptions& options);

}  // namespace fmmformer::bench
