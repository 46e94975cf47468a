// SPDX-License-Identifier: Apache-2.0
// The authors' models to the last parameter.
#include <gtest/gtest.h>

#include "fmmformer/models/model.h"
#include "models/configs.h"

namespace fmmformer {
namespace {

using namespace fmmformer::testing;
constexpr auto kElu = FeatureMap::kElu, kFlip = FeatureMap::kEluFlip, kTanh = FeatureMap::kTanh1;

int64_t count(const ModelConfig& config) { return make_model(config, 1)->parameter_count(); }

TEST(ParameterCount, Copy) {
  const AttentionConfig softmax{.kind = AttentionKind::kSoftmax, .causal = true};
  const AttentionConfig linear{
      .causal = true, .bandwidth = 0, .feature_maps = {kElu}, .blend = {.rule = BlendPreset::kSum}};
  EXPECT_EQ(count(copy_model(softmax)), 3'163'787);
  EXPECT_EQ(count(copy_model(linear)), 3'163'787);
  EXPECT_EQ(count(copy_model(copy_attention(0, {kElu}))), 3'163'787 + 1024);
  EXPECT_EQ(count(copy_model(copy_attention(30, {}))), 3'163'787 + 1024);
  EXPECT_EQ(count(copy_model(copy_attention(30, {kElu, kFlip, kTanh}))), 3'167'883);
}

TEST(ParameterCount, LongRangeArena) {
  struct Row {
    LraTask task;
    BlendPreset rule;
    int64_t plain, one_kernel, two_kernels;  // the latter two: what blending adds
  };
  const Row rows[] = {{kListops, BlendPreset::kListops, 209'802, 8, 8 + 4},
                      {kText, BlendPreset::kText, 370'562, 128, 128},
                      {kRetrieval, BlendPreset::kRetrieval, 395'138, 4, 4 + 4},
                      {kImage, BlendPreset::kImage, 174'986, 128, 128 + 2},
                      {kPathfinder, BlendPreset::kPathfinder, 173'954, 2, 2 + 2}};
  for (const Row& row : rows) {
    const auto counted = [&](int64_t bandwidth, std::vector<FeatureMap> maps) {
      return count(lra_model(row.task, lra_attention(bandwidth, std::move(maps), row.rule)));
    };
    const auto name = enum_name(row.rule);
    EXPECT_EQ(count(lra_model(row.task, {.kind = AttentionKind::kSoftmax})), row.plain) << name;
    EXPECT_EQ(counted(5, {}), row.plain) << name;
    EXPECT_EQ(counted(0, {kElu}), row.plain) << name;
    EXPECT_EQ(counted(5, {kElu}), row.plain + row.one_kernel) << name;
    EXPECT_EQ(counted(5, {kElu, kFlip}), row.plain + row.two_kernels) << name;
  }
}

TEST(ParameterCount, LanguageModel) {
  const AttentionConfig softmax{.kind = AttentionKind::kSoftmax};
  AttentionConfig fmm{.bandwidth = 20,
                      .feature_maps = {kElu, kFlip},
                      .unit_features = true,
                      .eps = 1e-5,
                      .far_scale = 0.25,
                      .projections = Projections::kFused,
                      .blend = {.rule = BlendPreset::kLanguageModel}};
  EXPECT_EQ(count(wikitext_model(softmax)), 44'018'394);
  EXPECT_EQ(count(wikitext_model(fmm)), 44'018'394 + 2'048);
  fmm.feature_maps = {};
  EXPECT_EQ(count(wikitext_model(fmm)), 44'018'394);
}

TEST(ParameterCount, LanguageModelWithFastWeights) {
  const auto counted = [](int64_t bandwidth, std::vector<FeatureMap> maps) {
    return count(wikitext_model(fast_weight_attention_config(bandwidth, std::move(maps))));
  };
  EXPECT_EQ(counted(0, {kElu}), 44'018'394 + 16'384);
  EXPECT_EQ(counted(0, {kElu, kElu}), 44'018'394 + 16'416);
  EXPECT_EQ(counted(20, {kElu}), 44'018'394 + 20'480);
  EXPECT_EQ(counted(20, {kElu, kElu}), 44'018'394 + 20'512);
}

}  // namespace
}  // namespace fmmformer
