// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cmath>
#include <string>

#include "fmmformer/attention/fmm_reference.h"
#include "fmmformer/nn/initialise.h"

namespace fmmformer::testing {

inline void fill(torch::nn::Module& module, uint64_t seed = 1) {
  initialise(module, Initialisation::kTorch, 0.02, seed);
}

/// Parameters of a module by name, for computing its output by hand.
struct Parameters {
  const torch::nn::Module& module;
  torch::Tensor operator()(const std::string& name) const {
    const torch::Tensor* found = all.find(name);
    return found ? *found : torch::Tensor();
  }
  torch::OrderedDict<std::string, torch::Tensor> all = module.named_parameters();
};

inline torch::Tensor plain_linear(const Parameters& p, const std::string& name,
                                  const torch::Tensor& x) {
  const torch::Tensor y = torch::matmul(x, p(name + ".weight").t());
  const torch::Tensor bias = p(name + ".bias");
  return bias.defined() ? y + bias : y;
}

inline torch::Tensor plain_norm(const Parameters& p, const std::string& name,
                                const torch::Tensor& x) {
  const torch::Tensor centred = x - x.mean(-1, true);
  const torch::Tensor variance = centred.square().mean(-1, true);
  return centred / (variance + 1e-5).sqrt() * p(name + ".weight") + p(name + ".bias");
}

/// Dense softmax attention over [B, N, H, D], from its formula.
inline torch::Tensor plain_softmax(const torch::Tensor& q, const torch::Tensor& k,
                                   const torch::Tensor& v, bool causal) {
  torch::Tensor scores =
      torch::einsum("bihd,bjhd->bhij", {q, k}) / std::sqrt(static_cast<double>(q.size(3)));
  if (causal) {
    const int64_t n = q.size(1);
    scores = scores.masked_fill(torch::ones({n, n}, torch::kBool).triu(1), -INFINITY);
  }
  return torch::einsum("bhij,bjhd->bihd", {scores.softmax(-1), v});
}

inline double largest_difference(const torch::Tensor& a, const torch::Tensor& b) {
  return (a.to(torch::kDouble) - b.to(torch::kDouble)).abs().max().item<double>();
}

}  // namespace fmmformer::testing
