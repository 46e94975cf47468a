// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/nn/attention_layer.h"

#include <gtest/gtest.h>

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

TEST(AttentionLayer, NoFieldAtAllIsAnError) {
  EXPECT_THROW(AttentionLayer({.bandwidth = 0, .feature_maps = {}}, kShape, 0), c10::ValueError);
}

}  // namespace
}  // namespace fmmformer
