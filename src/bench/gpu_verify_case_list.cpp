// SPDX-License-Identifier: Apache-2.0
// What `verify` holds against the reference on a GPU alone: as much at a time as it cuts otherwise
// than a small call.
#include <utility>

#include "bench/attention_cases.h"

namespace fmmformer::bench {
namespace {

using enum FeatureMap;
using Cases = std::vector<AttentionCase>;

/// One long head, cut into so many segments on a GPU that a scan joins their states.
void add_many_segments(Cases& cases) {
  constexpr int64_t kWidestOnBothSides = 17;  // that the kernels of up to 32 channels take
  const auto add = [&cases](int64_t head_dim, bool causal) {
    const std::string side = causal ? "_causal" : "_two_sided";
    cases.push_back({.name = "many_segments_of_" + std::to_string(head_dim) + "_channels" + side,
                     .batch = 1,
                     .length = 2400,
                     .heads = 1,
                     .head_dim = head_dim,
                     .bandwidth = causal || head_dim > 32 ? 30 : kWidestOnBothSides,
                     .causal = causal,
                     .feature_maps = {kElu, kEluFlip, kTanh1},
                     .weights = WeightShape::kScalar,
                     .mask = MaskPattern::kInterior,
                     .dtypes = {c10::kFloat, c10::kBFloat16},
                     .tags = {CaseTag::kVerifyOnGpu}});
    if (head_dim > 64) cases.back().feature_maps = {kElu, kEluFlip};
  };
  for (const int64_t head_dim : {16, 32, 64, 128}) add(head_dim, true), add(head_dim, false);
  add(48, /*causal=*/true), add(96, /*causal=*/true);
}

/// As many two-sided heads as fill a GPU with a cluster of two or four thread blocks each.
void add_clusters(Cases& cases) {
  const auto add = [&cases](const std::string& name, int64_t batch, int64_t length,
                            MaskPattern mask) {
    cases.push_back({.name = "clusters_of_" + name + "_two_sided",
                     .batch = batch,
                     .length = length,
                     .heads = 2,
                     .head_dim = 32,
                     .bandwidth = 5,
                     .causal = false,
                     .mask = mask,
                     .dtypes = {c10::kFloat, c10::kBFloat16},
                     .tags = {CaseTag::kVerifyOnGpu}});
  };
  add("two", 32, 520, MaskPattern::kRight);
  add("four", 16, 1030, MaskPattern::kInterior);
}

/// As many heads of 32 channels as a GPU walks one by one, a thread block each.
void add_many_narrow_heads(Cases& cases) {
  const auto add = [&cases](const std::string& name, int64_t length, int64_t bandwidth,
                            std::vector<FeatureMap> maps) {
    cases.push_back({.name = name,
                     .batch = 32,
                     .length = length,
                     .heads = 8,
                     .head_dim = 32,
                     .bandwidth = bandwidth,
                     .feature_maps = std::move(maps),
                     .weights = WeightShape::kPerChannel,
                     .dtypes = {c10::kFloat, c10::kBFloat16},
                     .tags = {CaseTag::kVerifyOnGpu}});
  };
  add("many_heads_of_32_channels", 100, 30, {kElu, kEluFlip, kTanh1});
  cases.back().mask = MaskPattern::kRandom, cases.back().near_dropout = 0.1;
  add("many_unit_heads_of_32_channels", 130, 20, {kElu, kEluFlip});
  cases.back().unit_features = true, cases.back().near_dropout = 0.1;
  cases.back().layout = Layout::kBhnd;
  add("many_heads_of_32_channels_and_one_map", 64, 5, {kElu});
  add("many_heads_of_32_channels_in_five_chunks", 300, 30, {kElu, kEluFlip, kTanh1});
  add("many_heads_of_32_channels_less_their_far_field", 130, 20, {kElu, kEluFlip});
  cases.back().far_scale = -0.7;
  add("many_heads_of_32_channels_with_no_far_scale", 64, 5, {kElu});
  cases.back().far_scale = 0;
  add("many_heads_of_32_channels_several_a_block", 70, 30, {kElu, kEluFlip, kTanh1});
  cases.back().batch = 40, cases.back().near_dropout = 0.2;
  add("many_heads_of_32_channels_with_large_scores", 130, 30, {kElu});
  // Scores of hundreds leave fp32 with fewer digits than its bar asks for.
  cases.back().near_scale = 20, cases.back().dtypes = {c10::kBFloat16};
}

/// As many causal heads of up to 64 channels as fill a GPU with one, two, three or four blocks
/// each: there both sides' gradients are made in one sweep, in bf16.
void add_many_heads_of_64_channels(Cases& cases) {
  const auto add = [&cases](const std::string& name, int64_t batch, int64_t length,
                            std::vector<FeatureMap> maps, MaskPattern mask) -> AttentionCase& {
    cases.push_back({.name = "many_heads_of_64_channels" + name,
                     .batch = batch,
                     .length = length,
                     .heads = 8,
                     .head_dim = 64,
                     .bandwidth = 20,
                     .feature_maps = std::move(maps),
                     .weights = WeightShape::kPerHead,
                     .mask = mask,
                     .dtypes = {c10::kBFloat16},
                     .tags = {CaseTag::kVerifyOnGpu}});
    return cases.back();
  };
  const std::vector<FeatureMap> two = {kElu, kEluFlip};
  add("", 16, 130, two, MaskPattern::kRandom);
  add("_in_seven_chunks", 16, 420, two, MaskPattern::kNone);
  add("_and_one_map", 16, 66, {kElu}, MaskPattern::kLeft);
  add("_that_share_keys", 16, 65, two, MaskPattern::kNone).shared_key_heads = true;
  AttentionCase& far = add("_less_their_near_field", 16, 130, two, MaskPattern::kNone);
  far.bandwidth = 0, far.layout = Layout::kBhnd;
  add("_in_two_segments", 8, 530, two, MaskPattern::kRandom);
  add("_in_three_segments", 5, 800, {kElu}, MaskPattern::kRandom);
  add("_in_four_segments", 4, 1024, two, MaskPattern::kNone);
  add("_with_dropout", 16, 150, two, MaskPattern::kRandom).near_dropout = 0.1;
  add("_with_dropout_and_one_map", 16, 200, {kElu}, MaskPattern::kNone).near_dropout = 0.5;
  add("_with_dropout_in_two_segments", 8, 530, two, MaskPattern::kRandom).near_dropout = 0.1;
  add("_with_dropout_in_three_segments", 5, 800, two, MaskPattern::kRight).near_dropout = 0.1;
  const auto add_narrower = [&](int64_t head_dim, const std::string& name, int64_t batch,
                                int64_t length, std::vector<FeatureMap> maps) -> AttentionCase& {
    AttentionCase& one = add("", batch, length, std::move(maps), MaskPattern::kRandom);
    one.name = "many_heads_of_" + std::to_string(head_dim) + "_channels" + name;
    one.head_dim = head_dim;
    return one;
  };
  add_narrower(48, "", 16, 130, two);
  add_narrower(56, "_with_dropout", 16, 150, two).near_dropout = 0.1;
  add_narrower(48, "_with_dropout_and_one_map", 8, 530, {kElu}).near_dropout = 0.3;
  add_narrower(56, "_and_one_map", 16, 200, {kElu});
  add_narrower(40, "_in_two_segments", 8, 530, two);
  add_narrower(48, "_in_three_segments", 5, 800, {kElu});
  AttentionCase& shared = add_narrower(48, "_that_share_keys", 16, 65, two);
  shared.shared_key_heads = true, shared.mask = MaskPattern::kNone;
  AttentionCase& alone = add_narrower(40, "_less_their_near_field", 16, 130, two);
  alone.bandwidth = 0, alone.layout = Layout::kBhnd;
}

/// As many as are walked whole, without segments, and go backward in one launch in bf16.
void add_many_wide_heads(Cases& cases) {
  for (const int64_t head_dim : {96, 128}) {
    cases.push_back({.name = "many_heads_of_" + std::to_string(head_dim) + "_channels",
                     .batch = 1,
                     .length = 700,
                     .heads = 80,
                     .head_dim = head_dim,
                     .bandwidth = 20,
                     .mask = MaskPattern::kRight,
                     .dtypes = {c10::kBFloat16},
                     .tags = {CaseTag::kVerifyOnGpu}});
  }
  cases.push_back(cases.back());
  cases.back().name = "many_heads_of_128_channels_with_dropout", cases.back().near_dropout = 0.1;
  cases.push_back(cases.back());
  cases.back().name = "segments_of_128_channels_with_dropout";
  cases.back().length = 2100, cases.back().heads = 1;
  cases.push_back(cases.back());
  cases.back().name = "segments_of_96_channels_with_dropout_and_one_map";
  cases.back().head_dim = 96, cases.back().feature_maps = {kElu};
}

}  // namespace

std::vector<AttentionCase> make_gpu_verify_cases() {
  Cases cases;
  add_many_segments(cases);
  add_clusters(cases);
  add_many_narrow_heads(cases);
  add_many_heads_of_64_channels(cases);
  add_many_wide_heads(cases);
  return cases;
}

}  // namespace fmmformer::bench
