// SPDX-License-Identifier: Apache-2.0
// Beside torch's own optimizers, where they compute the same.
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include "train/optimizer.h"

namespace fmmformer::train {
namespace {

using at::Tensor;

std::vector<Tensor> sample_parameters(at::ScalarType type) {
  torch::manual_seed(7);
  std::vector<Tensor> parameters;
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{33, 65}, {130}, {}}) {
    parameters.push_back(torch::randn(shape, at::kDouble).to(type).requires_grad_());
  }
  return parameters;
}

void set_gradients(const std::vector<Tensor>& parameters, int64_t step) {
  torch::manual_seed(100 + step);
  for (const Tensor& parameter : parameters) {
    parameter.mutable_grad() = torch::randn(parameter.sizes(), at::kDouble).to(parameter.dtype());
  }
}

NamedTensors named(const std::vector<Tensor>& parameters) {
  NamedTensors result;
  for (const Tensor& parameter : parameters) {
    result.emplace_back(std::to_string(result.size()), parameter);
  }
  return result;
}

/// Runs both for 50 steps, with a global clip, and compares after each.
template <typename TorchOptimizer, typename TorchOptions>
void compare(at::ScalarType type, const OptimizerConfig& config, double learning_rate) {
  const std::vector<Tensor> ours = sample_parameters(type);
  const std::vector<Tensor> theirs = sample_parameters(type);
  Optimizer optimizer(named(ours), config);
  TorchOptimizer torchs(theirs, TorchOptions(learning_rate)
                                    .betas({0.9, config.beta2})
                                    .eps(config.eps)
                                    .weight_decay(config.weight_decay));
  const double allowed = type == at::kDouble ? 1e-13 : 1e-6;
  for (int64_t step = 1; step <= 50; ++step) {
    set_gradients(ours, step);
    set_gradients(theirs, step);
    const double norm = torch::nn::utils::clip_grad_norm_(theirs, 0.25);
    EXPECT_NEAR(optimizer.global_clip(0.25).item<double>(), norm, 1e-6 * norm);
    optimizer.step(learning_rate, 0.9);
    torchs.step();
    for (size_t i = 0; i < ours.size(); ++i) {
      const double error = (ours[i] - theirs[i]).norm().item<double>();
      ASSERT_LE(error, allowed * theirs[i].norm().item<double>()) << i << ", step " << step;
    }
  }
}

TEST(OptimizerBesideTorch, AdamOfTheLanguageModel) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    compare<torch::optim::Adam, torch::optim::AdamOptions>(type, {.kind = OptimizerKind::kAdam},
                                                           2.5e-4);
  }
}

TEST(OptimizerBesideTorch, AdamWithDecay) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    compare<torch::optim::Adam, torch::optim::AdamOptions>(
        type, {.kind = OptimizerKind::kAdam, .weight_decay = 0.1}, 1e-2);
  }
}

// Torch multiplies by 1 - rate * decay in fp32 and so rounds that the same way in every step; these
// are numbers for which it is exact.
TEST(OptimizerBesideTorch, AdamW) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    compare<torch::optim::AdamW, torch::optim::AdamWOptions>(
        type, {.kind = OptimizerKind::kAdamW, .eps = 1e-6, .weight_decay = 0x1p-5}, 0x1p-7);
  }
}

TEST(OptimizerBesideTorch, AdamWWithABeta1ThatChangesEveryStep) {
  const std::vector<Tensor> ours = sample_parameters(at::kDouble);
  const std::vector<Tensor> theirs = sample_parameters(at::kDouble);
  Optimizer optimizer(named(ours), {.kind = OptimizerKind::kAdamW, .eps = 1e-6});
  torch::optim::AdamW torchs(theirs, torch::optim::AdamWOptions(1e-4).eps(1e-6).weight_decay(0));
  for (int64_t step = 1; step <= 50; ++step) {
    const double learning_rate = 1e-4 * static_cast<double>(step);
    const double beta1 = 0.95 - 0.002 * static_cast<double>(step);
    auto& options = static_cast<torch::optim::AdamWOptions&>(torchs.param_groups()[0].options());
    options.betas({beta1, 0.999}).lr(learning_rate);
    set_gradients(ours, step);
    set_gradients(theirs, step);
    optimizer.step(learning_rate, beta1);
    torchs.step();
    for (size_t i = 0; i < ours.size(); ++i) {
      ASSERT_LE((ours[i] - theirs[i]).norm().item<double>(),
                1e-13 * theirs[i].norm().item<double>());
    }
  }
}

}  // namespace
}  // namespace fmmformer::train
