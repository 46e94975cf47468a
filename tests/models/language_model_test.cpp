// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/models/language_model.h"

#include <gtest/gtest.h>

#include "fmmformer/nn/positions.h"
#include "models/configs.h"
#include "nn/helpers.h"

namespace fmmformer {
namespace {

using namespace fmmformer::testing;
using torch::Tensor;

ModelConfig small_wikitext(AttentionConfig attention) {
  ModelConfig config = wikitext_model(std::move(attention));
  config.vocabulary = 50, config.cutoffs = {10, 20, 35};
  return made_small(std::move(config));
}

AttentionConfig rank3_band() {
  return copy_attention(10, {FeatureMap::kElu, FeatureMap::kEluFlip, FeatureMap::kTanh1});
}

AttentionConfig fast_weights_band() {
  return fast_weight_attention_config(10, {FeatureMap::kElu, FeatureMap::kElu});
}

// Post-norm blocks with ReLU, from their formulas.
Tensor plain_blocks(const Parameters& p, Tensor x) {
  for (const std::string block : {"encoder.block_0.", "encoder.block_1."}) {
    const auto heads = [&](const std::string& name) {
      return plain_linear(p, block + "attention." + name, x).view({x.size(0), x.size(1), 4, 8});
    };
    x = plain_norm(
        p, block + "attention_norm",
        x + plain_linear(
                p, block + "attention.output",
                plain_softmax(heads("query"), heads("key"), heads("value"), true).flatten(2)));
    x = plain_norm(
        p, block + "ffn_norm",
        x + plain_linear(p, block + "ffn_out", plain_linear(p, block + "ffn_in", x).clamp_min(0)));
  }
  return x;
}

TEST(LanguageModel, TheCopyModelEqualsAPlainComputation) {
  const auto model = make_model(small_copy(causal_softmax()), 3);
  const Tensor tokens = torch::randint(11, {3, 33});
  const Parameters p{*model};
  const Tensor x = torch::cat({p("encoder.embedding.weight").index({tokens}),
                               interleaved_sinusoids(33, 16).expand({3, 33, 16})},
                              2);
  const Tensor expected =
      plain_linear(p, "output", plain_norm(p, "encoder.final_norm", plain_blocks(p, x)));
  EXPECT_LT(largest_difference(model->forward({.tokens = tokens}, {}), expected), 2e-5);
}

TEST(LanguageModel, TheWikitextModelEqualsAPlainComputation) {
  const auto model = make_model(small_wikitext(causal_softmax()), 3);
  const Tensor tokens = torch::randint(50, {3, 33});
  const Parameters p{*model};
  const Tensor x = p("encoder.embedding.weight").index({tokens}) * std::sqrt(32.0) +
                   halved_sinusoids(40, 32).flip(0).slice(0, 0, 33);  // down to 0 in a whole window
  const Tensor hidden = plain_blocks(p, x);
  const auto& lm = dynamic_cast<const LanguageModel&>(*model);
  const Tensor out = lm.forward({.tokens = tokens}, {});
  const Tensor front = torch::log_softmax(
      torch::cat({torch::matmul(hidden, p("encoder.embedding.weight").slice(0, 0, 10).t()) +
                      p("output.bias").slice(0, 0, 10),
                  plain_linear(p, "output.cluster", hidden)},
                 2),
      2);
  EXPECT_LT(largest_difference(out.slice(2, 0, 10), front.slice(2, 0, 10)), 2e-5);
  EXPECT_LT(largest_difference(out.exp().sum(2), torch::ones({3, 33})), 1e-5);
}

TEST(LanguageModel, LossesAreMinusTheLogProbabilityOfTheTargets) {
  for (const auto& config : {small_copy(rank3_band()), small_wikitext(rank3_band())}) {
    const auto model = make_model(config, 3);
    const Tensor tokens = torch::randint(config.vocabulary, {3, 33}),
                 targets = torch::randint(config.vocabulary, {3, 33});
    const Tensor losses = model->losses({.tokens = tokens}, targets, {});
    const Tensor plain = -model->forward({.tokens = tokens}, {})
                              .log_softmax(-1)
                              .gather(2, targets.unsqueeze(2))
                              .squeeze(2);
    EXPECT_EQ(losses.sizes(), targets.sizes());
    EXPECT_LT(largest_difference(losses, plain), 1e-5);
  }
}

TEST(LanguageModel, RowsGivenToClustersDoNotChangeItsLosses) {
  const auto model = make_model(small_wikitext(rank3_band()), 3);
  const Tensor tokens = torch::randint(50, {3, 33}), targets = torch::randint(50, {3, 33});
  const Tensor losses = model->losses({.tokens = tokens}, targets, {});
  EXPECT_LT(largest_difference(
                model->losses({.tokens = tokens, .cluster_capacities = {99, 80, 64}}, targets, {}),
                losses),
            1e-5);
}

TEST(LanguageModel, NothingIsSeenOfTheFuture) {
  for (const auto& attention : {causal_softmax(), rank3_band(), fast_weights_band()}) {
    const auto model = make_model(small_copy(attention), 3);
    const Tensor tokens = torch::randint(11, {2, 33});
    Tensor changed = tokens.clone();
    changed.slice(1, 20).fill_(5);
    const auto run = [&](const Tensor& t) {
      return model->forward({.tokens = t}, {}).slice(1, 0, 20);
    };
    EXPECT_LT(largest_difference(run(tokens), run(changed)), 1e-6);
  }
}

TEST(LanguageModel, ATokenHasTheSamePredictionHoweverManyFollow) {
  for (const auto& config : {small_copy(rank3_band()), small_wikitext(causal_softmax())}) {
    const auto model = make_model(config, 3);
    const Tensor tokens = torch::randint(11, {2, 33});
    const Tensor whole = model->forward({.tokens = tokens}, {}),
                 part = model->forward({.tokens = tokens.slice(1, 0, 20)}, {});
    EXPECT_LT(largest_difference(part, whole.slice(1, 0, 20)), 1e-5);
  }
}

TEST(LanguageModel, AllItsParametersGetGradients) {
  for (const auto& config : {small_copy(rank3_band()), small_wikitext(rank3_band()),
                             small_wikitext(fast_weights_band())}) {
    const auto model = make_model(config, 3);
    {
      at::NoGradGuard no_gradients;
      for (const auto& p : model->named_parameters()) {
        if (p.key().find("blend") != std::string::npos) p.value().add_(0.3);
      }
    }
    const Pass pass{.training = true, .dropout_seed = dropout_seed(1, 0, at::kCPU)};
    const Tensor tokens = torch::randint(config.vocabulary, {4, 40});
    model->losses({.tokens = tokens}, tokens, pass).mean().backward();
    for (const auto& p : model->named_parameters()) {
      ASSERT_TRUE(p.value().grad().defined()) << p.key();
      EXPECT_GT(p.value().grad().abs().sum().item<double>(), 0) << p.key();
    }
  }
}

}  // namespace
}  // namespace fmmformer
