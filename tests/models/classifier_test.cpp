// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "fmmformer/models/pair_classifier.h"
#include "fmmformer/models/sequence_classifier.h"
#include "models/configs.h"
#include "nn/helpers.h"

namespace fmmformer {
namespace {

using namespace fmmformer::testing;
using torch::Tensor;
using torch::indexing::None;
using torch::indexing::Slice;

ModelConfig small(ModelKind kind, AttentionConfig attention) {
  ModelConfig config = lra_model(kListops, std::move(attention));
  config.kind = kind;
  config.dim = 16, config.ffn_dim = 24, config.max_length = 40, config.head_hidden = 20;
  config.classes = 3;
  return config;
}

AttentionConfig two_kernels() {
  return lra_attention(5, {FeatureMap::kElu, FeatureMap::kEluFlip}, BlendPreset::kListops);
}

Tensor mask_of(int64_t length, const std::vector<int64_t>& real) {
  Tensor mask = torch::zeros({static_cast<int64_t>(real.size()), length}, torch::kBool);
  for (size_t b = 0; b < real.size(); ++b) {
    mask.index_put_({static_cast<int64_t>(b), Slice(None, real[b])}, true);
  }
  return mask;
}

// The whole model from its formulas, in plain operations: pre-norm, GELU, learned positions.
Tensor plain_encoder(const Parameters& p, const Tensor& tokens) {
  const int64_t length = tokens.size(1);
  Tensor x = p("encoder.embedding.weight").index({tokens}) +
             p("encoder.positions.weight").index({Slice(None, length)});
  for (const std::string block : {"encoder.block_0.", "encoder.block_1."}) {
    const Tensor n = plain_norm(p, block + "attention_norm", x);
    const auto heads = [&](const std::string& name) {
      return plain_linear(p, block + "attention." + name, n).view({x.size(0), length, 2, 8});
    };
    x = x +
        plain_linear(p, block + "attention.output",
                     plain_softmax(heads("query"), heads("key"), heads("value"), false).flatten(2));
    const Tensor wide = plain_linear(p, block + "ffn_in", plain_norm(p, block + "ffn_norm", x));
    x = x +
        plain_linear(p, block + "ffn_out", 0.5 * wide * (1 + torch::erf(wide / std::sqrt(2.0))));
  }
  return plain_norm(p, "encoder.final_norm", x);
}

Tensor plain_head(const Parameters& p, const Tensor& features) {
  return plain_linear(p, "head.output", plain_linear(p, "head.hidden", features).clamp_min(0));
}

TEST(SequenceClassifier, EqualsAPlainComputation) {
  const auto model =
      make_model(small(ModelKind::kSequenceClassifier, {.kind = AttentionKind::kSoftmax}), 3);
  const Tensor tokens = torch::randint(32, {4, 30});
  const Parameters p{*model};
  EXPECT_LT(largest_difference(model->forward({.tokens = tokens}, {}),
                               plain_head(p, plain_encoder(p, tokens).mean(1))),
            1e-5);
}

TEST(PairClassifier, EqualsAPlainComputation) {
  const auto model =
      make_model(small(ModelKind::kPairClassifier, {.kind = AttentionKind::kSoftmax}), 3);
  const Tensor first = torch::randint(32, {4, 30}), second = torch::randint(32, {4, 30});
  const Parameters p{*model};
  const Tensor a = plain_encoder(p, first).mean(1), b = plain_encoder(p, second).mean(1);
  EXPECT_LT(largest_difference(model->forward({.tokens = first, .other_tokens = second}, {}),
                               plain_head(p, torch::cat({a, b, a * b, a - b}, 1))),
            1e-5);
}

TEST(SequenceClassifier, MaskedTokensDoNotMatter) {
  for (const auto& attention : {two_kernels(), AttentionConfig{.kind = AttentionKind::kSoftmax}}) {
    const auto model = make_model(small(ModelKind::kSequenceClassifier, attention), 3);
    const Tensor mask = mask_of(30, {30, 17, 1});
    const Tensor tokens = torch::randint(1, 32, {3, 30});
    const Tensor other = torch::where(mask, tokens, torch::randint(1, 32, {3, 30}));
    EXPECT_TRUE(torch::equal(model->forward({.tokens = tokens, .token_mask = mask}, {}),
                             model->forward({.tokens = other, .token_mask = mask}, {})));
  }
}

TEST(PairClassifier, MaskedTokensDoNotMatter) {
  const auto model = make_model(small(ModelKind::kPairClassifier, two_kernels()), 3);
  const Tensor mask = mask_of(30, {30, 17}), other_mask = mask_of(30, {4, 25});
  const auto run = [&](int64_t junk) {
    const Tensor a = torch::arange(60).view({2, 30}).remainder(31) + 1;
    return model->forward({.tokens = torch::where(mask, a, torch::full_like(a, junk)),
                           .token_mask = mask,
                           .other_tokens = torch::where(other_mask, a, torch::full_like(a, junk)),
                           .other_token_mask = other_mask},
                          {});
  };
  EXPECT_TRUE(torch::equal(run(0), run(7)));
}

TEST(Pooling, DividesByTheLengthOrByTheRealTokens) {
  const Tensor x = torch::randn({2, 10, 4}), mask = mask_of(10, {10, 3});
  const Tensor sum = x[1].index({Slice(None, 3)}).sum(0);
  EXPECT_LT(largest_difference(pooled(x, mask, Pooling::kPaddedLength)[1], sum / 10), 1e-6);
  EXPECT_LT(largest_difference(pooled(x, mask, Pooling::kRealTokens)[1], sum / 3), 1e-6);
  EXPECT_LT(largest_difference(pooled(x, std::nullopt, Pooling::kRealTokens), x.mean(1)), 1e-6);
}

TEST(SequenceClassifier, AllItsParametersGetGradients) {
  for (const auto preset : {BlendPreset::kListops, BlendPreset::kPaper, BlendPreset::kImage,
                            BlendPreset::kPathfinder}) {
    AttentionConfig attention = two_kernels();
    attention.blend.rule = preset;
    const auto model = make_model(small(ModelKind::kSequenceClassifier, attention), 3);
    {
      // Off the start, where a far weight of 0 hides its kernels' coefficients.
      at::NoGradGuard no_gradients;
      for (const auto& p : model->named_parameters()) {
        if (p.key().find("blend") != std::string::npos) p.value().add_(0.3);
      }
    }
    const Pass pass{.training = true, .dropout_seed = dropout_seed(1, 0, at::kCPU)};
    model->losses({.tokens = torch::randint(32, {8, 40})}, torch::randint(3, {8}), pass)
        .mean()
        .backward();
    for (const auto& p : model->named_parameters()) {
      ASSERT_TRUE(p.value().grad().defined()) << p.key();
      EXPECT_GT(p.value().grad().abs().sum().item<double>(), 0) << p.key();
    }
  }
}

}  // namespace
}  // namespace fmmformer
