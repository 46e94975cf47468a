// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/nn/attention_layer.h"

#include <gtest/gtest.h>

#include "fmmformer/attention/fast_weight_reference.h"
#include "fmmformer/nn/decoding_memory.h"
#include "nn/helpers.h"

namespace fmmformer {
namespace {

using namespace fmmformer::testing;
using torch::Tensor;

constexpr AttentionShape kShape{.dim = 24, .heads = 3, .head_dim = 8};

Tensor heads_of(const Tensor& x) { return x.view({x.size(0), x.size(1), kShape.heads, -1}); }

Pass training(int64_t step = 0) {
  return {.training = true, .dropout_seed = dropout_seed(3, step, at::kCPU)};
}

TEST(AttentionLayer, SoftmaxEqualsThePlainFormula) {
  for (const bool causal : {false, true}) {
    AttentionLayer layer({.kind = AttentionKind::kSoftmax, .causal = causal}, kShape, 0);
    fill(layer);
    const Parameters p{layer};
    const Tensor x = torch::randn({2, 17, 24});
    const Tensor out =
        plain_softmax(heads_of(plain_linear(p, "query", x)), heads_of(plain_linear(p, "key", x)),
                      heads_of(plain_linear(p, "value", x)), causal);
    EXPECT_LT(largest_difference(layer.forward(x, std::nullopt, {}),
                                 plain_linear(p, "output", out.flatten(2))),
              1e-5);
  }
}

TEST(AttentionLayer, FusedProjectionsAreLaidOutPerHead) {
  AttentionLayer layer({.kind = AttentionKind::kSoftmax,
                        .causal = true,
                        .projections = Projections::kFused,
                        .bias = false},
                       kShape, 0);
  fill(layer);
  const Parameters p{layer};
  EXPECT_EQ(p.all.size(), 2u);
  const Tensor x = torch::randn({2, 17, 24});
  const Tensor qkv = plain_linear(p, "qkv", x).view({2, 17, 3, 3, 8});  // head, then q | k | v
  const Tensor out = plain_softmax(qkv.select(3, 0), qkv.select(3, 1), qkv.select(3, 2), true);
  EXPECT_LT(largest_difference(layer.forward(x, std::nullopt, {}),
                               plain_linear(p, "output", out.flatten(2))),
            1e-5);
}

TEST(AttentionLayer, FmmEqualsTheReferenceWithTheBlendsWeights) {
  const AttentionConfig config{.causal = true,
                               .bandwidth = 4,
                               .feature_maps = {FeatureMap::kElu, FeatureMap::kTanh1},
                               .unit_features = true,
                               .far_scale = 0.5,
                               .blend = {.rule = BlendPreset::kPaper}};
  AttentionLayer layer(config, kShape, 0);
  fill(layer);
  const Parameters p{layer};
  const Tensor x = torch::randn({2, 17, 24});
  const BlendWeights weights{.near_weight = p("blend.near").sigmoid(),
                             .far_weight = p("blend.far").sigmoid().expand({2, 3, 1})};
  const Tensor out = fmm_attention_reference({.q = heads_of(plain_linear(p, "query", x)),
                                              .k = heads_of(plain_linear(p, "key", x)),
                                              .v = heads_of(plain_linear(p, "value", x))},
                                             weights,
                                             {.window = Window{3, 0},
                                              .causal = true,
                                              .feature_maps = config.feature_maps,
                                              .unit_features = true,
                                              .far_scale = 0.5});
  EXPECT_LT(largest_difference(layer.forward(x, std::nullopt, {}),
                               plain_linear(p, "output", out.flatten(2).to(torch::kFloat))),
            1e-5);
}

TEST(AttentionLayer, DropoutFollowsFromTheSeedAndTheLayer) {
  for (const auto kind : {AttentionKind::kFmm, AttentionKind::kSoftmax}) {
    const AttentionConfig config{.kind = kind, .causal = true, .dropout = 0.3};
    AttentionLayer first(config, kShape, 0), second(config, kShape, 1);
    fill(first), fill(second);
    const Tensor x = torch::randn({2, 17, 24});
    const auto run = [&](const AttentionLayer& layer, const Pass& pass) {
      return layer.forward(x, std::nullopt, pass);
    };
    EXPECT_TRUE(torch::equal(run(first, training()), run(first, training())));
    EXPECT_FALSE(torch::equal(run(first, training()), run(first, training(1))));
    EXPECT_FALSE(torch::equal(run(first, training()), run(second, training())));
    EXPECT_TRUE(torch::equal(run(first, {}), run(second, {})));
  }
}

TEST(AttentionLayer, SoftmaxWithDropoutIsSoftmaxOnAverage) {
  const AttentionConfig plain{.kind = AttentionKind::kSoftmax};
  AttentionConfig dropping = plain;
  dropping.dropout = 0.2;
  AttentionLayer a(plain, kShape, 0), b(dropping, kShape, 0);
  fill(a), fill(b);
  at::NoGradGuard no_gradients;
  const Tensor x = torch::randn({1, 9, 24});
  Tensor sum = torch::zeros_like(x);
  for (int64_t step = 0; step < 2000; ++step) sum += b.forward(x, std::nullopt, training(step));
  EXPECT_LT(largest_difference(sum / 2000, a.forward(x, std::nullopt, {})), 0.03);
}

TEST(AttentionLayer, MaskedTokensDoNotMoveTheOthers) {
  for (const auto kind : {AttentionKind::kFmm, AttentionKind::kSoftmax}) {
    AttentionLayer layer({.kind = kind}, kShape, 0);
    fill(layer);
    const Tensor x = torch::randn({2, 12, 24});
    Tensor mask = torch::ones({2, 12}, torch::kBool);
    mask.index_put_({0, torch::indexing::Slice(7, torch::indexing::None)}, false);
    Tensor changed = x.clone();
    changed.index_put_({0, torch::indexing::Slice(7, torch::indexing::None)}, 100.0);
    const Tensor live = mask.unsqueeze(-1);
    EXPECT_TRUE(
        torch::equal(layer.forward(x, mask, {}) * live, layer.forward(changed, mask, {}) * live));
  }
}

TEST(AttentionLayer, ALookerGetsWhatTheOperatorGotAndGave) {
  AttentionLayer layer({.bandwidth = 3}, kShape, 5);
  fill(layer);
  AttentionRecord record;
  const Pass pass{.on_attention = [&](const AttentionRecord& r) { record = r; }};
  layer.forward(torch::randn({1, 9, 24}), std::nullopt, pass);
  EXPECT_EQ(record.layer, 5);
  EXPECT_LT(largest_difference(
                fmm_attention_reference(record.inputs, record.weights, record.options), record.out),
            1e-5);
}

AttentionConfig fast_weights(int64_t bandwidth, std::vector<FeatureMap> maps) {
  return {.causal = true,
          .bandwidth = bandwidth,
          .feature_maps = std::move(maps),
          .fast_weights = true,
          .unit_features = true,
          .eps = 1e-5,
          .far_scale = 0.25,
          .blend = {.rule = BlendPreset::kFastWeights}};
}

// The authors' rows with fast weights: alone, with a linear field, with a band, with both.
const AttentionConfig kFastWeightRows[] = {
    fast_weights(0, {FeatureMap::kElu}), fast_weights(0, {FeatureMap::kElu, FeatureMap::kElu}),
    fast_weights(4, {FeatureMap::kElu}), fast_weights(4, {FeatureMap::kElu, FeatureMap::kEluFlip})};

void move_parameters(torch::nn::Module& module) {
  at::NoGradGuard no_gradients;
  for (const auto& p : module.named_parameters()) {
    if (p.key().find("blend") != std::string::npos) p.value().add_(torch::rand_like(p.value()));
  }
}

TEST(AttentionLayer, FastWeightsAreTheFirstFarFieldOfTheBlend) {
  for (const AttentionConfig& config : kFastWeightRows) {
    AttentionLayer layer(config, kShape, 0);
    fill(layer), move_parameters(layer);
    const Parameters p{layer};
    const auto one = [&](const char* name) {
      return p(name).defined() ? p(name) : torch::ones({1, 1});
    };
    const Tensor x = torch::randn({2, 17, 24});
    const AttentionInputs inputs{.q = heads_of(plain_linear(p, "query", x)),
                                 .k = heads_of(plain_linear(p, "key", x)),
                                 .v = heads_of(plain_linear(p, "value", x))};
    const Tensor beta = torch::sigmoid(torch::matmul(x, p("gate.weight").t()));
    Tensor far =
        one("blend.kernel_0") *
        fast_weight_attention_reference({.q = inputs.q, .k = inputs.k, .v = inputs.v, .beta = beta},
                                        {.feature_map = FeatureMap::kElu, .far_scale = 0.25});
    if (config.feature_maps.size() > 1) {
      far = far + one("blend.kernel_1") *
                      fmm_attention_reference(inputs, {},
                                              {.causal = true,
                                               .feature_maps = {config.feature_maps[1]},
                                               .unit_features = true,
                                               .eps = 1e-5,
                                               .far_scale = 0.25});
    }
    Tensor out = one("blend.far") * far;
    if (config.bandwidth > 0) {
      out = out + one("blend.near") *
                      fmm_attention_reference(inputs, {}, {.window = Window{3, 0}, .causal = true});
    }
    EXPECT_LT(largest_difference(layer.forward(x, std::nullopt, {}),
                                 plain_linear(p, "output", out.flatten(2).to(torch::kFloat))),
              1e-5);
  }
}

TEST(AttentionLayer, GradientsReachTheGateAndEveryBlendWeight) {
  for (const AttentionConfig& config : kFastWeightRows) {
    AttentionLayer layer(config, kShape, 0);
    fill(layer), move_parameters(layer);
    layer.forward(torch::randn({2, 17, 24}), std::nullopt, {}).square().sum().backward();
    for (const auto& p : layer.named_parameters()) {
      ASSERT_TRUE(p.value().grad().defined()) << p.key();
      EXPECT_GT(p.value().grad().abs().sum().item<double>(), 0) << p.key();
    }
  }
}

TEST(AttentionLayer, FastWeightsInHalfPrecisionKeepTheTypeAndTheWeightsInFp32) {
  AttentionLayer layer(kFastWeightRows[3], kShape, 0);
  fill(layer), move_parameters(layer);
  const Tensor x = torch::randn({2, 17, 24});
  const Tensor exact = layer.forward(x, std::nullopt, {});
  layer.to(torch::kBFloat16);
  const Tensor out = layer.forward(x.to(torch::kBFloat16), std::nullopt, {});
  EXPECT_EQ(out.scalar_type(), torch::kBFloat16);
  EXPECT_LT(largest_difference(out, exact), 0.03 * exact.abs().max().item<double>());
}

TEST(AttentionLayer, DecodingAgreesWithTheWholeSequence) {
  std::vector<AttentionConfig> configs(std::begin(kFastWeightRows), std::end(kFastWeightRows));
  configs.push_back({.causal = true, .bandwidth = 4});
  configs.push_back({.kind = AttentionKind::kSoftmax, .causal = true});
  for (const AttentionConfig& config : configs) {
    AttentionLayer layer(config, kShape, 0);
    fill(layer), move_parameters(layer);
    const Tensor x = torch::randn({2, 17, 24}), whole = layer.forward(x, std::nullopt, {});
    DecodingMemory memory{.longest = 17};
    const Pass going_on{.memory = &memory};
    const Tensor begin = layer.forward(x.slice(1, 0, 9), std::nullopt, going_on);
    EXPECT_LT(largest_difference(begin, whole.slice(1, 0, 9)), 1e-5);
    for (int64_t t = 9; t < 17; ++t) {
      const Tensor token = layer.forward(x.slice(1, t, t + 1), std::nullopt, going_on);
      EXPECT_LT(largest_difference(token, whole.slice(1, t, t + 1)), 1e-5) << t;
    }
    EXPECT_THROW(layer.forward(x.slice(1, 0, 2), std::nullopt, going_on), c10::ValueError);
  }
}

TEST(AttentionLayer, WithoutCausalityNoTextGoesOn) {
  DecodingMemory memory{.longest = 17};
  EXPECT_THROW(AttentionLayer({}, kShape, 0)
                   .forward(torch::randn({2, 17, 24}), std::nullopt, {.memory = &memory}),
               c10::ValueError);
}

TEST(AttentionLayer, FastWeightsWithoutAMapOrWithoutCausalityAreErrors) {
  AttentionConfig config = fast_weights(4, {});
  EXPECT_THROW(AttentionLayer(config, kShape, 0), c10::ValueError);
  config.feature_maps = {FeatureMap::kElu}, config.causal = false;
  EXPECT_THROW(AttentionLayer(config, kShape, 0), c10::ValueError);
}

TEST(AttentionLayer, NoFieldAtAllIsAnError) {
  EXPECT_THROW(AttentionLayer({.bandwidth = 0, .feature_maps = {}}, kShape, 0), c10::ValueError);
}

}  // namespace
}  // namespace fmmformer
