// SPDX-License-Identifier: Apache-2.0
// Between torch's tensors and what a safetensors file holds.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "fmmformer/core/safetensors.h"
#include "train/named_tensors.h"

namespace fmmformer::train {

/// Named tensors, ready to be written: on the CPU and contiguous, copied only where they are not
/// already. The views live as long as this object and show what the tensors then hold.
class TensorViews {
 public:
  /// Throws c10::ValueError for a tensor of a type that safetensors files of ours do not hold.
  explicit TensorViews(const NamedTensors& tensors);
  const std::vector<std::pair<std::string, SafeTensorView>>& views() const { return views_; }

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<std::pair<std::string, SafeTensorView>> views_;
};

/// The tensors of a file, on the CPU, in the order of the file.
NamedTensors tensors_of(const SafeTensorsFile& file);

}  // namespace fmmformer::train
