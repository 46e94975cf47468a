// SPDX-License-Identifier: Apache-2.0
#include "bench/attention_cases.h"

namespace fmmformer::bench {

/// The experiments of the paper with fewer batch entries; `verify` without --quick runs them all.
std::vector<AttentionCase> make_paper_cases() {
  using enum FeatureMap;
  std::vector<AttentionCase> cases;
  const std::vector<CaseTag> quick = {CaseTag::kVerify, CaseTag::kQuick, CaseTag::kPaper};
  const std::vector<CaseTag> slow = {CaseTag::kVerify, CaseTag::kPaper};
  const std::vector<FeatureMap> three = {kElu, kEluFlip, kTanh1};
  cases.push_back({.name = "paper_copy_512",
                   .batch = 1,
                   .length = 512,
                   .heads = 8,
                   .head_dim = 32,
                   .bandwidth = 30,
                   .feature_maps = three,
                   .unit_features = true,
                   .weights = WeightShape::kPerChannel,
                   .dtypes = {c10::kFloat, c10::kBFloat16},
                   .tags = quick});
  cases.push_back({.name = "paper_wikitext_256",
                   .batch = 2,
                   .length = 256,
                   .heads = 8,
                   .head_dim = 16,
                   .bandwidth = 20,
                   .near_dropout = 0.1,
                   .dtypes = {c10::kFloat, c10::kBFloat16},
                   .tags = quick});
  cases.push_back({.name = "paper_image_1024",
                   .batch = 2,
                   .length = 1024,
                   .heads = 2,
                   .head_dim = 32,
                   .causal = false,
                   .normaliser = Normaliser::kInvSqrtLength,
                   .weights = WeightShape::kScalar,
                   .dtypes = {c10::kFloat, c10::kBFloat16},
                   .tags = slow});
  cases.push_back({.name = "paper_listops_2000",
                   .batch = 1,
                   .length = 2000,
                   .heads = 2,
                   .head_dim = 32,
                   .causal = false,
                   .normaliser = Normaliser::kInvSqrtLength,
                   .mask = MaskPattern::kRight,
                   .dtypes = {c10::kFloat, c10::kBFloat16},
                   .tags = slow});
  cases.push_back({.name = "paper_text_4096",
                   .batch = 1,
                   .length = 4096,
                   .heads = 1,
                   .head_dim = 32,
                   .causal = false,
                   .normaliser = Normaliser::kInvSqrtLength,
                   .mask = MaskPattern::kRight,
                   .dtypes = {c10::kFloat},
                   .tags = slow});
  return cases;
}

}  // namespace fmmformer::bench
