// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/nn/initialise.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <cmath>

#include "fmmformer/core/random.h"
#include "fmmformer/nn/layers.h"

namespace fmmformer {

using at::Tensor;

namespace {

/// Draws on the CPU in fp32, whatever the parameter's device and type.
class Filler {
 public:
  Filler(uint64_t seed, std::string path) : seed_(seed), path_(std::move(path)) {}

  void normal(const Tensor& parameter, const char* name, double mean, double std) const {
    at::Generator generator = generator_of(name);
    fill(parameter, [&](Tensor& values) { values.normal_(mean, std, generator); });
  }
  void uniform(const Tensor& parameter, const char* name, double bound) const {
    at::Generator generator = generator_of(name);
    fill(parameter, [&](Tensor& values) { values.uniform_(-bound, bound, generator); });
  }

 private:
  at::Generator generator_of(const char* name) const {
    return at::detail::createCPUGenerator(derive_seed(seed_, "parameter", path_ + "." + name));
  }

  template <typename Draw>
  static void fill(const Tensor& parameter, const Draw& draw) {
    if (!parameter.defined()) return;
    Tensor values = at::empty(parameter.sizes(), at::TensorOptions().dtype(at::kFloat));
    draw(values);
    parameter.copy_(values);
  }

  uint64_t seed_;
  std::string path_;
};

void fill_linear(const Linear& linear, const Filler& filler, Initialisation rule, double std) {
  if (rule == Initialisation::kNormal) {
    filler.normal(linear.weight, "weight", 0, std);
    if (linear.bias.defined()) linear.bias.zero_();
    return;
  }
  const double bound = 1.0 / std::sqrt(static_cast<double>(linear.weight.size(1)));
  filler.uniform(linear.weight, "weight", bound);
  filler.uniform(linear.bias, "bias", bound);
}

void fill_norm(const LayerNorm& norm, const Filler& filler, Initialisation rule, double std) {
  norm.weight.fill_(1);
  norm.bias.zero_();
  if (rule == Initialisation::kNormal) filler.normal(norm.weight, "weight", 1, std);
}

}  // namespace

void initialise(torch::nn::Module& model, Initialisation rule, double std, uint64_t seed) {
  at::NoGradGuard no_gradients;
  const auto fill = [&](const std::string& path, const torch::nn::Module& module) {
    const Filler filler(seed, path);
    if (const auto* linear = dynamic_cast<const Linear*>(&module)) {
      fill_linear(*linear, filler, rule, std);
    } else if (const auto* norm = dynamic_cast<const LayerNorm*>(&module)) {
      fill_norm(*norm, filler, rule, std);
    } else if (const auto* table = dynamic_cast<const Embedding*>(&module)) {
      filler.normal(table->weight, "weight", 0, rule == Initialisation::kTorch ? 1.0 : std);
    }
  };
  fill("", model);
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    fill(item.key(), *item.value());
  }
}

}  // namespace fmmformer
