// SPDX-License-Identifier: Apache-2.0
#include "bench/attention_cases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace fmmformer::bench {
namespace {

using testing::HasSubstr;

template <typename Predicate>
bool some_verify_case(const Predicate& predicate) {
  return std::ranges::any_of(cases_with_tag(CaseTag::kVerify), predicate);
}

std::string error_of(std::string_view name) {
  try {
    case_named(name);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(AttentionCases, NamesAreUnique) {
  std::set<std::string> names;
  for (const AttentionCase& one : attention_cases())
    EXPECT_TRUE(names.insert(one.name).second) << one.name;
}

TEST(AttentionCases, EveryFeatureMapAndNormaliserIsVerifiedInBothDirections) {
  for (const bool causal : {true, false}) {
    for (const auto& entry : EnumTable<FeatureMap>::entries()) {
      EXPECT_TRUE(some_verify_case([&](const AttentionCase& c) {
        return c.causal == causal && std::ranges::count(c.feature_maps, entry.value) > 0;
      })) << entry.name;
    }
    for (const auto& entry : EnumTable<Normaliser>::entries()) {
      EXPECT_TRUE(some_verify_case([&](const AttentionCase& c) {
        return c.causal == causal && c.normaliser == entry.value;
      })) << entry.name;
    }
  }
}

TEST(AttentionCases, EveryWeightShapeMaskAndLayoutIsVerified) {
  for (const auto shape : {WeightShape::kNone, WeightShape::kScalar, WeightShape::kPerHead,
                           WeightShape::kPerChannel}) {
    EXPECT_TRUE(some_verify_case([&](const AttentionCase& c) { return c.weights == shape; }));
  }
  for (const auto mask : {MaskPattern::kNone, MaskPattern::kLeft, MaskPattern::kRight,
                          MaskPattern::kInterior, MaskPattern::kRandom, MaskPattern::kAllDead}) {
    EXPECT_TRUE(some_verify_case([&](const AttentionCase& c) { return c.mask == mask; }));
  }
  for (const auto layout : {Layout::kBnhd, Layout::kBhnd}) {
    EXPECT_TRUE(some_verify_case([&](const AttentionCase& c) { return c.layout == layout; }));
  }
  EXPECT_TRUE(some_verify_case([](const AttentionCase& c) { return c.near_dropout > 0; }));
  EXPECT_TRUE(some_verify_case([](const AttentionCase& c) { return c.shared_key_heads; }));
  EXPECT_TRUE(some_verify_case(
      [](const AttentionCase& c) { return c.feature_maps.size() == kMaxFeatureMaps; }));
}

TEST(AttentionCases, TheBandwidthOfACaseBecomesAWindow) {
  EXPECT_EQ(options_of({.name = "a", .bandwidth = 5, .causal = true}).window, (Window{4, 0}));
  EXPECT_EQ(options_of({.name = "a", .bandwidth = 5, .causal = false}).window, (Window{4, 4}));
  EXPECT_EQ(options_of({.name = "a", .bandwidth = 0}).window, std::nullopt);
  EXPECT_EQ(options_of({.name = "a", .window = Window{3, 7}, .causal = false}).window,
            (Window{3, 7}));
}

TEST(AttentionCases, AMisspelledNameIsAnsweredWithTheNearestOne) {
  EXPECT_THAT(error_of("plain_casual"), HasSubstr("did you mean 'plain_causal'"));
  EXPECT_THAT(error_of("causal_2048"), HasSubstr("causal_2048_r3_band30"));
}

TEST(AttentionCases, WithManyHeadsOrOneCutIntoManySegmentsAreLeftToAGpu) {
  const auto cases = cases_with_tag(CaseTag::kVerifyOnGpu);
  EXPECT_FALSE(cases.empty());
  for (const AttentionCase& one : cases) {
    EXPECT_TRUE(one.batch * one.heads >= 32 || one.length >= 2048) << one.name;
    EXPECT_FALSE(one.has_tag(CaseTag::kVerify) || one.has_tag(CaseTag::kQuick)) << one.name;
  }
}

TEST(AttentionCases, TheShapeReadsAsBatchLengthHeadsDimThenMapsPlusBand) {
  EXPECT_EQ(shape_text(case_named(kPlainCase)), "1x2048x8x64 causal 3+30");
  EXPECT_EQ(shape_text({.name = "a", .value_dim = 8, .window = Window{3, 7}, .causal = false}),
            "2x97x2x16:8 two-sided 2+(3,7)");
}

TEST(AttentionCases, WhatIsTimedOnAGpuIsTimedThereAlone) {
  const auto cases = cases_with_tag(CaseTag::kGpu);
  EXPECT_GE(cases.size(), 12u);
  for (const AttentionCase& one : cases) {
    EXPECT_TRUE(one.name.starts_with("gpu_")) << one.name;
    EXPECT_EQ(one.tags.size(), 1u) << one.name;
    EXPECT_EQ(one.dtypes.front(), c10::kBFloat16) << one.name;
    EXPECT_TRUE(one.gpu_limit || one.name.starts_with("gpu_short_")) << one.name;
  }
}

TEST(AttentionCases, TypesHaveShortNames) {
  for (const auto* name : {"fp64", "fp32", "bf16", "fp16"})
    EXPECT_EQ(dtype_name(dtype_from_name(name)), name);
  EXPECT_THROW(dtype_from_name("float"), std::invalid_argument);
}

}  // namespace
}  // namespace fmmformer::bench
