// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/models/model.h"

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/configs.h"
#include "nn/helpers.h"

namespace fmmformer {
namespace {

using namespace fmmformer::testing;
using torch::Tensor;

AttentionConfig band_and_kernels() {
  return copy_attention(10, {FeatureMap::kElu, FeatureMap::kTanh1});
}

Pass training(int64_t step = 0) {
  return {.training = true, .dropout_seed = dropout_seed(3, step, at::kCPU)};
}

TEST(Model, IsAFunctionOfSeedInputsAndPass) {
  const Tensor tokens = torch::randint(11, {2, 33});
  for (const auto& attention :
       {band_and_kernels(), AttentionConfig{.kind = AttentionKind::kSoftmax, .dropout = 0.1}}) {
    const auto run = [&](uint64_t seed, const Pass& pass) {
      const auto model = make_model(small_copy(attention), seed);
      const Tensor loss = model->losses({.tokens = tokens}, tokens, pass).mean();
      loss.backward();
      std::vector<Tensor> all = {loss};
      for (const Tensor& parameter : model->parameters()) all.push_back(parameter.grad());
      return all;
    };
    const auto a = run(1, training()), b = run(1, training());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::equal(a[i], b[i])) << i;
    EXPECT_FALSE(torch::equal(a[0], run(1, training(1))[0]));
    EXPECT_FALSE(torch::equal(a[0], run(2, training())[0]));
    EXPECT_FALSE(torch::equal(a[0], run(1, {})[0]));
  }
}

TEST(Model, RunsInHalfPrecisionWithItsBlendInFp32) {
  const Tensor tokens = torch::randint(11, {2, 33});
  const auto model = make_model(small_copy(band_and_kernels()), 1);
  {
    at::NoGradGuard no_gradients;
    for (const auto& p : model->named_parameters()) {
      if (p.key().find("blend.near") != std::string::npos) p.value().fill_(0.5);
    }
  }
  const Tensor exact = model->forward({.tokens = tokens}, {}).detach();
  model->to(torch::kBFloat16);
  for (const auto& p : model->named_parameters()) {
    const bool blend = p.key().find("blend") != std::string::npos;
    EXPECT_EQ(p.value().scalar_type(), blend ? torch::kFloat : torch::kBFloat16) << p.key();
  }
  const Tensor half = model->forward({.tokens = tokens}, {});
  EXPECT_EQ(half.scalar_type(), torch::kBFloat16);
  EXPECT_LT(largest_difference(half, exact), 0.1);
  model->losses({.tokens = tokens}, tokens, training()).mean().backward();
  for (const auto& p : model->named_parameters()) {
    EXPECT_TRUE(p.value().grad().isfinite().all().item<bool>()) << p.key();
  }
}

TEST(Model, RunsUnderAutocast) {
  const Tensor tokens = torch::randint(11, {2, 33});
  for (const auto& attention :
       {band_and_kernels(), AttentionConfig{.kind = AttentionKind::kSoftmax}}) {
    const auto model = make_model(small_copy(attention), 1);
    const Tensor exact = model->losses({.tokens = tokens}, tokens, training()).detach();
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const Tensor mixed = model->losses({.tokens = tokens}, tokens, training());
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    EXPECT_FALSE(torch::equal(mixed, exact));  // it was in effect
    EXPECT_LT(largest_difference(mixed, exact), 0.1);
    mixed.mean().backward();
    for (const auto& p : model->named_parameters()) {
      EXPECT_TRUE(p.value().grad().isfinite().all().item<bool>()) << p.key();
    }
  }
}

TEST(Model, ItsConfigIsToml) {
  const ModelConfig config = model_config(R"(
    kind = "language_model"
    max_length = 512
    [attention]
    causal = true
    bandwidth = 30
    feature_maps = ["elu", "elu_flip", "tanh1"]
    unit_features = true
    dropout = 0.1
    [attention.blend]
    rule = "copy"
  )");
  EXPECT_EQ(make_model(config, 1)->parameter_count(), 3'167'883);
  ModelConfig again;
  read_config(parse_toml(to_toml(config_value(config)), "again"), again);
  EXPECT_EQ(to_toml(config_value(again)), to_toml(config_value(config)));
}

TEST(Model, TheListopsModelAsToml) {
  const ModelConfig config = model_config(R"(
    kind = "sequence_classifier"
    vocabulary = 32
    max_length = 2048
    classes = 10
    dim = 64
    layers = 2
    heads = 2
    ffn_dim = 128
    norm = "pre"
    activation = "gelu"
    embedding_dropout = 0.1
    positions = "learned"
    initialisation = "normal_embeddings"
    [attention]
    bandwidth = 5
    feature_maps = ["elu", "elu_flip"]
    normaliser = "inv_sqrt_length"
    dropout = 0.1
    [attention.blend]
    rule = "listops"
  )");
  EXPECT_EQ(make_model(config, 1)->parameter_count(), 209'802 + 12);
  // The same rule, spelled out.
  ModelConfig spelled = config;
  spelled.attention.blend = {};
  read_config(parse_toml(R"(
    rule = "sum"
    near = "learned"
    near_shape = "per_head"
    near_initial = 1
    far = "learned"
    far_shape = "per_head"
    far_initial = 0
    kernels = "learned"
    kernel_initial = [1, 0]
  )",
                         "test"),
              spelled.attention.blend);
  EXPECT_EQ(blend_rule(spelled.attention.blend, {true, 2}),
            blend_rule(config.attention.blend, {true, 2}));
}

TEST(Model, ContradictionsAreErrorsThatSayWhat) {
  const auto message = [](const ModelConfig& config) -> std::string {
    try {
      make_model(config, 1);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  };
  ModelConfig config = small_copy(band_and_kernels());
  config.heads = 5;
  EXPECT_THAT(message(config), ::testing::HasSubstr("multiple of heads"));
  config = small_copy(band_and_kernels());
  config.output = Output::kAdaptiveSoftmax;
  EXPECT_THAT(message(config), ::testing::HasSubstr("tied to the embedding"));
  config = small_copy(band_and_kernels());
  config.attention.blend.kernel_initial = std::vector<double>{1};
  EXPECT_THAT(message(config), ::testing::HasSubstr("kernel_initial has 1 numbers"));
  const auto model = make_model(small_copy(band_and_kernels()), 1);
  EXPECT_THROW(model->forward({.tokens = torch::zeros({1, 41}, torch::kLong)}, {}),
               c10::ValueError);
}

}  // namespace
}  // namespace fmmformer
