// SPDX-License-Identifier: Apache-2.0
#include "analysis/attention_sample.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <set>

#include "models/configs.h"
#include "nn/helpers.h"

namespace fmmformer::analysis {
namespace {

using namespace fmmformer::testing;

TEST(AttentionSample, HeadsAreDifferentAndFollowFromTheSeed) {
  const SampleSpace space{.examples = 5, .layers = 3, .heads = 4};
  const auto places = random_heads(space, 20, 1);
  std::set<std::vector<int64_t>> seen;
  for (size_t i = 0; i < places.size(); ++i) {
    seen.insert({places[i].example, places[i].layer, places[i].head});
    EXPECT_LT(places[i].example, 5);
    EXPECT_LT(places[i].layer, 3);
    EXPECT_LT(places[i].head, 4);
    if (i > 0) {
      EXPECT_LE(places[i - 1].example, places[i].example);
    }
  }
  EXPECT_EQ(seen.size(), 20u);
  EXPECT_EQ(random_heads(space, 20, 1), places);
  EXPECT_NE(random_heads(space, 20, 2), places);
  EXPECT_EQ(random_heads(space, 1000, 1).size(), 60u);  // all there are
}

TEST(AttentionSample, EveryMatrixIsThatOfItsHead) {
  const auto model = make_model(small_copy({.kind = AttentionKind::kSoftmax, .causal = true}), 4);
  torch::manual_seed(1);
  const torch::Tensor tokens = torch::randint(11, {3, 20});
  const auto inputs = [&](int64_t example) {
    return ModelInputs{.tokens = tokens.narrow(0, example, 1)};
  };
  const std::vector<HeadPlace> places = {{0, 1, 2}, {2, 0, 3}};
  std::vector<torch::Tensor> matrices;
  visit_attention(*model, inputs, places, [&](const HeadPlace& place, const torch::Tensor& matrix) {
    EXPECT_EQ(place, places[matrices.size()]);
    matrices.push_back(matrix);
  });
  ASSERT_EQ(matrices.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    const auto records = capture_attention(*model, inputs(places[i].example));
    const AttentionRecord& record = records[static_cast<size_t>(places[i].layer)];
    const torch::Tensor v = record.inputs.v[0].select(1, places[i].head),
                        out = record.out[0].select(1, places[i].head);
    EXPECT_LT(largest_difference(torch::matmul(matrices[i], v.to(torch::kDouble)), out), 1e-5);
  }
}

}  // namespace
}  // namespace fmmformer::analysis
