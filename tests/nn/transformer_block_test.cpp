// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/nn/transformer_block.h"

#include <gtest/gtest.h>

#include "nn/helpers.h"

namespace fmmformer {
namespace {

using namespace fmmformer::testing;
using torch::Tensor;

BlockOptions options(NormPlacement norm, Activation activation) {
  return {.shape = {.dim = 16, .heads = 2, .head_dim = 8},
          .ffn_dim = 40,
          .norm = norm,
          .activation = activation,
          .dropout = 0.2,
          .attention = {.kind = AttentionKind::kSoftmax, .causal = true}};
}

Tensor plain_attention(const Parameters& p, const Tensor& x) {
  const auto heads = [&](const char* name) {
    return plain_linear(p, std::string("attention.") + name, x).view({x.size(0), x.size(1), 2, 8});
  };
  return plain_linear(p, "attention.output",
                      plain_softmax(heads("query"), heads("key"), heads("value"), true).flatten(2));
}

// The block by hand; `factor(site)` is what dropout multiplies by.
template <typename Factor>
Tensor plain_block(const Parameters& p, const BlockOptions& o, const Tensor& x,
                   const Factor& factor) {
  const auto ffn = [&](const Tensor& y) {
    Tensor hidden = plain_linear(p, "ffn_in", y);
    hidden = o.activation == Activation::kRelu
                 ? hidden.clamp_min(0)
                 : 0.5 * hidden * (1 + torch::erf(hidden / std::sqrt(2.0)));
    hidden = hidden * factor(17, hidden);
    const Tensor out = plain_linear(p, "ffn_out", hidden);
    return out * factor(18, out);
  };
  if (o.norm == NormPlacement::kPre) {
    const Tensor attended = plain_attention(p, plain_norm(p, "attention_norm", x));
    const Tensor y = x + attended * factor(16, attended);
    return y + ffn(plain_norm(p, "ffn_norm", y));
  }
  const Tensor attended = plain_attention(p, x);
  const Tensor y = plain_norm(p, "attention_norm", x + attended * factor(16, attended));
  return plain_norm(p, "ffn_norm", y + ffn(y));
}

class Blocks : public ::testing::TestWithParam<std::tuple<NormPlacement, Activation>> {
 protected:
  BlockOptions options_ = options(std::get<0>(GetParam()), std::get<1>(GetParam()));
};

TEST_P(Blocks, EqualTheirFormula) {
  TransformerBlock block(options_, 0);
  fill(block);
  const Tensor x = torch::randn({3, 11, 16});
  const auto no_dropout = [](int64_t, const Tensor&) { return torch::ones({1}); };
  EXPECT_LT(largest_difference(block.forward(x, std::nullopt, {}),
                               plain_block(Parameters{block}, options_, x, no_dropout)),
            2e-5);
}

TEST_P(Blocks, DropWhereTheyShouldAndCarryItsGradients) {
  TransformerBlock block(options_, 0);
  fill(block);
  const Tensor x = torch::randn({3, 11, 16});
  const Pass pass{.training = true, .dropout_seed = dropout_seed(9, 4, at::kCPU)};
  const auto factor = [&](int64_t site, const Tensor& like) {
    return dropout_factors(like.sizes(), {.probability = 0.2, .site = site}, pass.dropout_seed);
  };
  const Tensor grad = torch::randn({3, 11, 16});
  const auto gradients = [&](const Tensor& out) {
    block.zero_grad();
    out.backward(grad);
    std::vector<Tensor> all;
    for (const Tensor& parameter : block.parameters()) all.push_back(parameter.grad().clone());
    return all;
  };
  const Tensor ours = block.forward(x, std::nullopt, pass);
  const Tensor plain = plain_block(Parameters{block}, options_, x, factor);
  EXPECT_LT(largest_difference(ours, plain), 2e-5);
  const auto a = gradients(ours), b = gradients(plain);
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_LT(largest_difference(a[i], b[i]), 2e-4) << block.named_parameters().keys()[i];
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Blocks,
    ::testing::Combine(::testing::Values(NormPlacement::kPre, NormPlacement::kPost),
                       ::testing::Values(Activation::kRelu, Activation::kGelu)));

}  // namespace
}  // namespace fmmformer
