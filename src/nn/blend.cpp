// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/nn/blend.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string>

namespace fmmformer {

using at::Tensor;

namespace {

torch::Dtype blend_type(torch::Dtype dtype) {
  return dtype == at::kBFloat16 || dtype == at::kHalf ? at::kFloat : dtype;
}

}  // namespace

Blend::Blend(const BlendRule& rule, const BlendFields& fields, int64_t heads, int64_t value_dim)
    : rule_(rule), fields_(fields) {
  const auto make = [&](const std::string& name, bool learned, WeightShape shape, double initial) {
    const int64_t rows = shape == WeightShape::kScalar ? 1 : heads;
    const int64_t columns = shape == WeightShape::kPerChannel ? value_dim : 1;
    if (learned) return register_parameter(name, at::full({rows, columns}, initial));
    return register_buffer(name, at::full({rows, columns}, initial));
  };
  const auto field_weight = [&](const std::string& name, WeightSource source, WeightShape shape,
                                double initial) {
    if (source == WeightSource::kLearned) return make(name, true, shape, initial);
    const bool needed = rule.normalise || rule.far == WeightSource::kTied;
    if (source == WeightSource::kTied || (initial == 1 && !needed)) return Tensor();
    return make(name, false, WeightShape::kScalar, initial);
  };
  if (fields.near) near_ = field_weight("near", rule.near, rule.near_shape, rule.near_initial);
  if (fields.kernels == 0) return;
  far_ = field_weight("far", rule.far, rule.far_shape, rule.far_initial);

  const auto& initial = rule.kernel_initial;
  if (rule.kernels == WeightSource::kFixed) {
    const bool ones = std::all_of(initial.begin(), initial.end(), [](double c) { return c == 1; });
    if (ones && !rule.normalise) return;
    fixed_kernels_ = register_buffer(
        "kernels",
        at::tensor(at::ArrayRef<double>(initial)).to(at::kFloat).view({fields.kernels, 1, 1}));
    return;
  }
  for (int64_t l = 0; l < fields.kernels; ++l) {
    const bool learned = rule.kernels == WeightSource::kLearned || l > 0;
    kernels_.push_back(make("kernel_" + std::to_string(l), learned, rule.kernel_shape,
                            initial[static_cast<size_t>(l)]));
  }
}

Tensor Blend::weight_from(const Tensor& held, WeightSource source) const {
  const bool sigmoid = source == WeightSource::kLearned && rule_.map == WeightMap::kSigmoid;
  return sigmoid ? held.sigmoid() : held;
}

Tensor Blend::kernel_weights() const {
  return kernels_.empty() ? fixed_kernels_ : at::stack(kernels_);
}

BlendWeights Blend::forward() const {
  Tensor near = near_.defined() ? weight_from(near_, rule_.near) : Tensor(), far;
  if (fields_.kernels > 0) {
    far = kernel_weights();
    Tensor common = far_.defined() ? weight_from(far_, rule_.far) : Tensor();
    if (rule_.far == WeightSource::kTied) common = 1 - near;
    if (common.defined()) {
      far = far.defined() ? far * common : common.expand({fields_.kernels, -1, -1});
    }
  }
  if (rule_.normalise) {
    Tensor total = near;
    if (far.defined()) total = total.defined() ? total + far.sum(0) : far.sum(0);
    if (near.defined()) near = near / total;
    if (far.defined()) far = far / total;
  }
  BlendWeights weights;
  if (near.defined()) weights.near_weight = near;
  if (far.defined()) weights.far_weight = far;
  return weights;
}

void Blend::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  torch::nn::Module::to(device, blend_type(dtype), non_blocking);
}

void Blend::to(torch::Dtype dtype, bool non_blocking) {
  torch::nn::Module::to(blend_type(dtype), non_blocking);
}

}  // namespace fmmformer
