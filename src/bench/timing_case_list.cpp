// SPDX-License-Identifier: Apache-2.0
// What `bench attention` times on a CPU.
#include <algorithm>
#include <array>
#include <utility>

#include "bench/attention_cases.h"

namespace fmmformer::bench {
namespace {

using enum FeatureMap;
using Cases = std::vector<AttentionCase>;

void add_timing(Cases& cases) {
  const std::vector<FeatureMap> three = {kElu, kEluFlip, kTanh1};
  const AttentionCase row{.name = "",
                          .batch = 1,
                          .length = 2048,
                          .heads = 8,
                          .head_dim = 64,
                          .bandwidth = 30,
                          .feature_maps = three,
                          .dtypes = {c10::kFloat},
                          .tags = {CaseTag::kTiming}};
  const auto add = [&cases, &row](std::string name, const auto& change) {
    AttentionCase next = row;
    next.name = std::move(name);
    change(next);
    cases.push_back(std::move(next));
  };
  const auto shape = [](AttentionCase& next, std::array<int64_t, 4> bnhd, int64_t bandwidth) {
    next.batch = bnhd[0], next.length = bnhd[1], next.heads = bnhd[2], next.head_dim = bnhd[3];
    next.bandwidth = bandwidth;
  };
  const std::vector<FeatureMap> two = {kElu, kEluFlip};
  add("causal_512_r3_band30", [](auto& c) { c.length = 512; });
  add("two_sided_512_r3_band30", [](auto& c) { c.length = 512, c.causal = false; });
  add(std::string(kPlainCase), [](auto&) {});
  add("causal_2048_r2_band20", [&](auto& c) { c.feature_maps = two, c.bandwidth = 20; });
  add("causal_2048_r1_band5", [](auto& c) { c.feature_maps = {kElu}, c.bandwidth = 5; });
  add("two_sided_2048_r3_band30", [](auto& c) { c.causal = false; });
  add("wikitext_r2_band20", [&](auto& c) { shape(c, {2, 256, 8, 16}, 20), c.feature_maps = two; });
  add("listops_r2_band5", [&](auto& c) {
    shape(c, {8, 2000, 2, 32}, 5), c.feature_maps = two, c.causal = false;
  });
  add("text_r2_band5", [&](auto& c) {
    shape(c, {2, 4096, 2, 32}, 5), c.feature_maps = two, c.causal = false;
  });
  add("copy_r3_band30", [&](auto& c) { shape(c, {8, 512, 8, 32}, 30); });
  add("causal_65536_r3_band30", [](auto& c) { c.length = 65536; });
}

/// The plain case with one thing changed; each may cost at most 1.3x.
void add_variants(Cases& cases) {
  const AttentionCase plain = *std::ranges::find(cases, kPlainCase, &AttentionCase::name);
  const auto add = [&cases, &plain](std::string name, const auto& change) {
    AttentionCase next = plain;
    next.name = std::move(name);
    next.tags = {CaseTag::kVariant};
    change(next);
    cases.push_back(std::move(next));
  };
  add("with_odd_length", [](auto& c) { c.length = 2047; });
  add("with_token_mask", [](auto& c) { c.mask = MaskPattern::kRandom; });
  add("with_padding", [](auto& c) { c.batch = 2, c.length = 1024, c.mask = MaskPattern::kRight; });
  add("with_dropout", [](auto& c) { c.near_dropout = 0.1; });
  add("with_channel_weights", [](auto& c) { c.weights = WeightShape::kPerChannel; });
  add("with_head_first_layout", [](auto& c) { c.layout = Layout::kBhnd; });
  add("with_bf16", [](auto& c) { c.dtypes = {c10::kBFloat16}; });
  add("with_fp16", [](auto& c) { c.dtypes = {c10::kHalf}; });
}

}  // namespace

std::vector<AttentionCase> make_timing_cases() {
  Cases cases;
  add_timing(cases);
  add_variants(cases);
  return cases;
}

}  // namespace fmmformer::bench
