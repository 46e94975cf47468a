// SPDX-License-Identifier: Apache-2.0
// Tensors with names: a model's parameters, an optimizer's state, a checkpoint's content.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fmmformer::train {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Copies each tensor of `from` into the one of the same name in `to`, whatever the order and the
/// device; types must agree. Throws c10::ValueError, naming `what` and the first tensor that is
/// missing, too many, or of another shape or type, with both shapes; nothing is changed then.
void copy_tensors(const NamedTensors& from, const NamedTensors& to, std::string_view what);

}  // namespace fmmformer::train
