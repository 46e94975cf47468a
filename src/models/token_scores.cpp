// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/models/token_scores.h"

#include <ATen/ATen.h>

#include <utility>

namespace fmmformer {

TokenScores::TokenScores(std::vector<Part> parts, Compute compute, Bound bound)
    : parts_(std::move(parts)),
      compute_(std::move(compute)),
      bound_(std::move(bound)),
      computed_(parts_.size()) {
  for (auto& bounds : bounds_) bounds.resize(parts_.size());
  TORCH_CHECK_VALUE(!parts_.empty(), "token scores: there are no tokens");
}

std::span<const float> TokenScores::log_p(size_t part) const {
  std::optional<at::Tensor>& values = computed_[part];
  if (!values) values = compute_(part).to(at::kCPU, at::kFloat).contiguous();
  return {values->const_data_ptr<float>(), static_cast<size_t>(values->numel())};
}

const TokenScores::Bounds& TokenScores::bounds(size_t part, Sharpness sharpness) const {
  const auto level = static_cast<size_t>(sharpness);
  if (level > 0) bounds(part, static_cast<Sharpness>(level - 1));
  std::optional<Bounds>& bounds = bounds_[level][part];
  if (!bounds) bounds = bound_ ? bound_(part, sharpness) : Bounds{};
  return *bounds;
}

at::Tensor TokenScores::all() const {
  std::vector<at::Tensor> values;
  for (size_t part = 0; part < parts_.size(); ++part) {
    log_p(part);
    values.push_back(*computed_[part]);
  }
  return at::cat(values);
}

}  // namespace fmmformer
