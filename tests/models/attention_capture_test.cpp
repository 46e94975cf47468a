// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/models/attention_capture.h"

#include <gtest/gtest.h>

#include "models/configs.h"
#include "nn/helpers.h"

namespace fmmformer {
namespace {

using namespace fmmformer::testing;
using torch::Tensor;

ModelConfig small(AttentionConfig attention, int64_t max_length = 40) {
  ModelConfig config = copy_model(std::move(attention));
  config.dim = 32, config.layers = 2, config.heads = 4, config.ffn_dim = 48;
  config.max_length = max_length;
  return config;
}

TEST(AttentionCapture, MapsTimesValuesAreTheLayersOutput) {
  AttentionConfig fmm = copy_attention(6, {FeatureMap::kElu, FeatureMap::kTanh1});
  fmm.blend.near_initial = 0.7;
  AttentionConfig lra =
      lra_attention(5, {FeatureMap::kElu, FeatureMap::kEluFlip}, BlendPreset::kText);
  lra.blend.far_initial = 0.2;
  const AttentionConfig softmax{.kind = AttentionKind::kSoftmax, .causal = true};
  const AttentionConfig linear = copy_attention(0, {FeatureMap::kElu});
  Tensor mask = torch::ones({2, 33}, torch::kBool);
  mask.slice(1, 25).select(0, 1).fill_(false);
  AttentionConfig fast = fast_weight_attention_config(6, {FeatureMap::kElu, FeatureMap::kElu});
  fast.blend.near_initial = 0.7, fast.blend.kernel_initial = {0.8, 0.3};
  for (const auto& attention : {fmm, lra, softmax, linear, fast}) {
    const auto model = make_model(small(attention), 4);
    const auto records =
        capture_attention(*model, {.tokens = torch::randint(11, {2, 33}), .token_mask = mask});
    ASSERT_EQ(records.size(), 2u);
    for (const AttentionRecord& record : records) {
      for (const int64_t b : {0, 1}) {
        const AttentionMaps maps = attention_maps(record, b, 3);
        const Tensor v = record.inputs.v.select(2, 3)[b], out = record.out.select(2, 3)[b];
        EXPECT_LT(largest_difference(maps.times(v), out), 1e-5);
      }
    }
  }
}

TEST(AttentionCapture, TheBandAndTheFarFieldsAreWhereTheyShouldBe) {
  const auto model =
      make_model(small(copy_attention(6, {FeatureMap::kElu, FeatureMap::kTanh1})), 4);
  const auto records = capture_attention(*model, {.tokens = torch::randint(11, {1, 33})});
  const AttentionMaps maps = attention_maps(records[1], 0, 0);
  const Tensor rows = torch::arange(33).unsqueeze(1), columns = torch::arange(33).unsqueeze(0);
  const Tensor band = (columns <= rows).logical_and(rows - columns < 6);
  EXPECT_TRUE(torch::equal(maps.near > 0, band));
  EXPECT_TRUE(torch::equal(maps.far[0] > 0, columns <= rows));
  EXPECT_LT(largest_difference(maps.near.sum(1), torch::ones({33})), 1e-6);
  EXPECT_LT(largest_difference(maps.far.sum(2), torch::ones({2, 33})), 1e-3);  // eps in the sums
  // With weights that are the same for all channels the blended matrix is the whole of it.
  EXPECT_LT(largest_difference(
                torch::matmul(maps.blended, records[1].inputs.v[0].select(1, 0).to(torch::kDouble)),
                records[1].out[0].select(1, 0)),
            1e-5);
}

TEST(AttentionCapture, LongInputsWork) {
  const AttentionConfig softmax{.kind = AttentionKind::kSoftmax, .causal = true};
  const auto model = make_model(small(softmax, 300), 4);
  const auto records = capture_attention(*model, {.tokens = torch::randint(11, {1, 300})});
  EXPECT_EQ(attention_maps(records[0], 0, 0).blended.sizes(), (std::vector<int64_t>{300, 300}));
}

}  // namespace
}  // namespace fmmformer
