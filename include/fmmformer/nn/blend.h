// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <vector>

#include "fmmformer/attention/fmm_attention.h"
#include "fmmformer/nn/blend_rule.h"

namespace fmmformer {

/// The parameters of a blend rule, and the weights that follow from them:
///   near_weight = near                 far_weight[l] = far kernel_l
/// Only what is learned has a parameter (near, far, kernel_0, kernel_1, ...), and only fields that
/// exist have any. A weight that is 1 whatever happens is left out of the result.
class Blend : public torch::nn::Module {
 public:
  Blend(const BlendRule& rule, const BlendFields& fields, int64_t heads, int64_t value_dim);

  /// Differentiable; near_weight [H or 1, Dv or 1], far_weight [r, H or 1, Dv or 1].
  BlendWeights forward() const;

  /// Weights stay fp32 when a model goes to bf16 or fp16: the operator takes them so, and a weight
  /// near 1 could not move by less than 1/256 otherwise.
  using torch::nn::Module::to;
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;

 private:
  at::Tensor weight_from(const at::Tensor& held, WeightSource source) const;
  at::Tensor kernel_weights() const;

  BlendRule rule_;
  BlendFields fields_;
  // A parameter when learned, a buffer when fixed, undefined when it is 1 or does not exist.
  at::Tensor near_, far_;
  at::Tensor fixed_kernels_;         // [r, 1, 1], when no kernel is learned
  std::vector<at::Tensor> kernels_;  // else one each
};

}  // namespace fmmformer
