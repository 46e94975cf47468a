// SPDX-License-Identifier: Apache-2.0
// One more field in a blend.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace fmmformer {

/// rest + weight field, or without a rest (undefined) or a weight just what there is. Fields are
/// [B, N, H, Dv]; the weight, fp32 beside fields of any type, is [H, 1] or [H, Dv]. The sum is fp32
/// until it is whole; it has the field's type.
at::Tensor with_field(const at::Tensor& rest, const at::Tensor& field,
                      const std::optional<at::Tensor>& weight);

}  // namespace fmmformer
