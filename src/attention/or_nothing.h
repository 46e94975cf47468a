// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace fmmformer {

/// Torch's two ways to say that there is no tensor: undefined, and absent. Operators and
/// Function::apply want the second.
inline std::optional<at::Tensor> or_nothing(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

}  // namespace fmmformer
