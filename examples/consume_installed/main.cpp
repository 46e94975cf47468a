// SPDX-License-Identifier: Apache-2.0
// FMM attention in another C++ project: a causal band of 5 keys, plus two far fields, with
// gradients.
#include <fmmformer/attention/fmm_attention.h>
#include <fmmformer/attention/fmm_reference.h>
#include <torch/types.h>

#include <cstdio>
#include <vector>

int main() {
  using fmmformer::FeatureMap;
  const int64_t batch = 2, length = 100, heads = 4, head_dim = 16;
  std::vector<at::Tensor> qkv;
  for (int i = 0; i < 3; ++i) {
    qkv.push_back(at::randn({batch, length, heads, head_dim}).requires_grad_());
  }
  const fmmformer::AttentionInputs inputs = {.q = qkv[0], .k = qkv[1], .v = qkv[2]};
  const fmmformer::BlendWeights weights = {.near_weight = torch::full({1}, 0.5).requires_grad_(),
                                           .far_weight = std::nullopt};
  const fmmformer::FmmOptions options = {
      .window = fmmformer::window_from_bandwidth(5, /*causal=*/true),
      .causal = true,
      .feature_maps = {FeatureMap::kElu, FeatureMap::kEluFlip}};

  const at::Tensor out = fmmformer::fmm_attention(inputs, weights, options);
  out.square().mean().backward();
  const at::Tensor exact = fmmformer::fmm_attention_reference(inputs, weights, options);

  const double error = (out - exact).abs().max().item<double>();
  std::printf("out [%ld, %ld, %ld, %ld], off the double reference by %.1e at most\n", out.size(0),
              out.size(1), out.size(2), out.size(3), error);
  std::printf("gradient norms: q %.4f, k %.4f, v %.4f, near_weight %.4f\n",
              qkv[0].grad().norm().item<double>(), qkv[1].grad().norm().item<double>(),
              qkv[2].grad().norm().item<double>(),
              weights.near_weight->grad().norm().item<double>());
  return error < 1e-4 ? 0 : 1;
}
