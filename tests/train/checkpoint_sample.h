// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "train/checkpoint_store.h"

namespace fmmformer::train {

/// The content of a small checkpoint whose every value is its step.
class CheckpointSample {
 public:
  explicit CheckpointSample(int64_t step, size_t elements = 6, bool best = false)
      : values_(elements, static_cast<float>(step)) {
    const SafeTensorView view{.dtype = "F32",
                              .shape = {static_cast<int64_t>(elements)},
                              .data = std::as_bytes(std::span(values_))};
    content_ = {.model = {{"weight", view}},
                .optimizer = {{"weight.first_moment", view}},
                .state = {{"seed", 7}, {"value", step}, {"share", 0.1}},
                .best = best};
  }
  CheckpointSample(const CheckpointSample&) = delete;
  CheckpointSample& operator=(const CheckpointSample&) = delete;
  const CheckpointContent& content() const { return content_; }

 private:
  std::vector<float> values_;
  CheckpointContent content_;
};

inline float first_value(const SafeTensorsFile& file) {
  return *reinterpret_cast<const float*>(file.tensors.front().second.data.data());
}

}  // namespace fmmformer::train
