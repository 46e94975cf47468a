// SPDX-License-Identifier: Apache-2.0
// What verify checks, and the list of all cases; what is asked of it is in attention_cases.cpp.
#include <algorithm>
#include <iterator>
#include <utility>

#include "bench/attention_cases.h"

namespace fmmformer::bench {
namespace {

using enum FeatureMap;
using Cases = std::vector<AttentionCase>;

// The row sum of a signed map can come near 0, where every arithmetic loses all digits. This eps is
// large enough to keep the division harmless and small enough that both branches of the guard are
// taken.
constexpr double kEpsOfSignedMaps = 4.0;

/// "map_" + "elu" -> "map_elu_causal" or "map_elu_two_sided".
std::string with_side(std::string name, std::string_view detail, bool causal) {
  name += detail;
  return name += causal ? "_causal" : "_two_sided";
}

void add_fields(Cases& cases) {
  cases.push_back({.name = "plain_causal"});
  cases.push_back({.name = "plain_two_sided", .causal = false});
  cases.push_back({.name = "near_field_only_causal", .feature_maps = {}});
  cases.push_back({.name = "near_field_only_two_sided", .causal = false, .feature_maps = {}});
  cases.push_back({.name = "far_field_only_causal", .bandwidth = 0});
  cases.push_back({.name = "far_field_only_two_sided", .bandwidth = 0, .causal = false});
  cases.push_back({.name = "no_field_at_all", .bandwidth = 0, .feature_maps = {}});
  cases.push_back(
      {.name = "eight_feature_maps_causal",
       .feature_maps = {kElu, kEluFlip, kTanh1, kRelu, kSoftplus, kElu, kTanh1, kRelu}});
  cases.push_back(
      {.name = "eight_feature_maps_two_sided",
       .causal = false,
       .feature_maps = {kElu, kEluFlip, kTanh1, kRelu, kSoftplus, kElu, kTanh1, kRelu}});
}

void add_windows(Cases& cases) {
  cases.push_back({.name = "diagonal_only", .bandwidth = 1});
  cases.push_back({.name = "diagonal_only_two_sided", .bandwidth = 1, .causal = false});
  cases.push_back({.name = "band_wider_than_sequence_causal", .length = 33, .bandwidth = 100});
  cases.push_back({.name = "band_wider_than_sequence_two_sided",
                   .length = 33,
                   .bandwidth = 100,
                   .causal = false});
  cases.push_back({.name = "band_30_causal", .length = 130, .bandwidth = 30});
  cases.push_back({.name = "band_30_two_sided", .length = 130, .bandwidth = 30, .causal = false});
  cases.push_back({.name = "band_100_of_300_causal", .batch = 1, .length = 300, .bandwidth = 100});
  cases.push_back({.name = "band_100_of_300_two_sided",
                   .batch = 1,
                   .length = 300,
                   .bandwidth = 100,
                   .causal = false});
  cases.push_back({.name = "window_3_7_two_sided", .window = Window{3, 7}, .causal = false});
  cases.push_back({.name = "window_0_5_two_sided", .window = Window{0, 5}, .causal = false});
  cases.push_back({.name = "window_40_0_two_sided", .window = Window{40, 0}, .causal = false});
  // As wide as a tile's neighbours, a row further, and lopsided.
  for (const Window window : {Window{16, 16}, Window{17, 15}, Window{8, 24}, Window{24, 8}}) {
    cases.push_back({.name = "window_" + std::to_string(window.left) + "_" +
                             std::to_string(window.right) + "_of_300_two_sided",
                     .length = 300,
                     .window = window,
                     .causal = false});
  }
  cases.push_back({.name = "window_32_0_of_300", .length = 300, .window = Window{32, 0}});
  cases.push_back({.name = "window_33_0_of_300", .length = 300, .window = Window{33, 0}});
  cases.push_back({.name = "window_3_7_cut_by_causal", .window = Window{3, 7}});
  cases.push_back({.name = "window_0_5_cut_by_causal", .window = Window{0, 5}});
  // On the CPU: the widest band that one walk back takes, and a key further.
  for (const int64_t left : {96, 97}) {
    cases.push_back({.name = "window_" + std::to_string(left) + "_0_of_300",
                     .length = 300,
                     .window = Window{left, 0}});
  }
}

void add_feature_maps(Cases& cases) {
  for (const auto& entry : EnumTable<FeatureMap>::entries()) {
    for (const bool causal : {true, false}) {
      AttentionCase one{.name = with_side("map_", entry.name, causal),
                        .causal = causal,
                        .feature_maps = {entry.value}};
      if (is_signed(entry.value)) one.eps = kEpsOfSignedMaps;
      cases.push_back(one);
      if (is_signed(entry.value)) continue;
      one.name.insert(0, "unit_");
      one.unit_features = true;
      cases.push_back(std::move(one));
    }
  }
  cases.push_back({.name = "repeated_map", .feature_maps = {kElu, kElu, kTanh1}});
  // A single channel makes relu's feature sum exactly 0 for half of the tokens: their unit features
  // are 0.
  cases.push_back({.name = "unit_features_with_zero_sum",
                   .head_dim = 1,
                   .value_dim = 8,
                   .feature_maps = {kRelu},
                   .unit_features = true});
}

void add_normalisers(Cases& cases) {
  for (const bool causal : {true, false}) {
    cases.push_back({.name = with_side("large_eps", "", causal), .causal = causal, .eps = 3.0});
    cases.push_back({.name = with_side("inverse_square_root_of_length", "", causal),
                     .causal = causal,
                     .feature_maps = {kElu, kTanh},
                     .normaliser = Normaliser::kInvSqrtLength,
                     .far_scale = 0.05});
    cases.push_back({.name = with_side("no_normaliser", "", causal),
                     .causal = causal,
                     .feature_maps = {kEluFlip, kIdentity},
                     .normaliser = Normaliser::kNone,
                     .far_scale = 0.01});
    cases.push_back({.name = with_side("unit_features_no_normaliser", "", causal),
                     .causal = causal,
                     .unit_features = true,
                     .normaliser = Normaliser::kNone});
  }
  cases.push_back({.name = "both_scales", .near_scale = 0.4, .far_scale = -0.7});
}

void add_weights_and_layouts(Cases& cases) {
  for (const bool causal : {true, false}) {
    cases.push_back({.name = with_side("no_weights", "", causal),
                     .causal = causal,
                     .weights = WeightShape::kNone});
    cases.push_back({.name = with_side("scalar_weights", "", causal),
                     .causal = causal,
                     .weights = WeightShape::kScalar});
    cases.push_back({.name = with_side("channel_weights", "", causal),
                     .causal = causal,
                     .weights = WeightShape::kPerChannel});
    cases.push_back({.name = with_side("head_first_layout", "", causal),
                     .causal = causal,
                     .layout = Layout::kBhnd});
    cases.push_back({.name = with_side("shared_key_heads", "", causal),
                     .causal = causal,
                     .shared_key_heads = true});
    cases.push_back({.name = with_side("dropout", "", causal),
                     .length = 130,
                     .bandwidth = 30,
                     .causal = causal,
                     .near_dropout = 0.2});
    cases.push_back({.name = with_side("three_maps_of_32_channels", "", causal),
                     .length = 300,
                     .head_dim = 32,
                     .bandwidth = causal ? 30 : 5,
                     .causal = causal,
                     .feature_maps = {kElu, kEluFlip, kTanh1},
                     .weights = WeightShape::kPerChannel,
                     .mask = MaskPattern::kRandom,
                     .near_dropout = 0.1});
    cases.push_back({.name = with_side("far_field_alone_of_32_channels", "", causal),
                     .length = 100,
                     .head_dim = 32,
                     .bandwidth = 0,
                     .causal = causal,
                     .feature_maps = {kElu}});
    cases.push_back({.name = with_side("several_segments_of_32_channels", "", causal),
                     .batch = 1,
                     .length = 1100,
                     .heads = 1,
                     .head_dim = 32,
                     .bandwidth = causal ? 20 : 5,
                     .causal = causal,
                     .mask = MaskPattern::kInterior});
    cases.push_back({.name = with_side("everything_at_once", "", causal),
                     .length = 130,
                     .head_dim = 48,
                     .value_dim = 33,
                     .bandwidth = 20,
                     .causal = causal,
                     .feature_maps = {kElu, kEluFlip, kTanh1},
                     .unit_features = true,
                     .weights = WeightShape::kPerChannel,
                     .mask = MaskPattern::kRandom,
                     .near_dropout = 0.1,
                     .layout = Layout::kBhnd});
  }
}

// Queries of other segments that see a segment's keys, through blocks of columns that hold the
// whole band, never do, or do by turns; and segments without a far field to join.
void add_segments(Cases& cases) {
  const auto add = [&cases](const std::string& name, Window window, bool causal) {
    cases.push_back({.name = "segments_" + name,
                     .batch = 1,
                     .length = 1100,
                     .heads = 1,
                     .window = window,
                     .causal = causal,
                     .mask = MaskPattern::kInterior,
                     .tags = {CaseTag::kVerify}});
  };
  add("with_window_16_16", {16, 16}, /*causal=*/false);
  add("with_window_60_44", {60, 44}, /*causal=*/false);
  add("with_band_100_two_sided", {99, 99}, /*causal=*/false);
  add("with_band_100_causal", {99, 0}, /*causal=*/true);
  for (const bool causal : {true, false}) {
    add(with_side("of_the_near_field_only", "", causal), {19, causal ? 0 : 19}, causal);
    cases.back().feature_maps = {};
  }
}

void add_masks(Cases& cases) {
  constexpr std::array kPatterns = {
      std::pair{MaskPattern::kLeft, "left"},         std::pair{MaskPattern::kRight, "right"},
      std::pair{MaskPattern::kInterior, "interior"}, std::pair{MaskPattern::kRandom, "random"},
      std::pair{MaskPattern::kAllDead, "all_dead"},
  };
  for (const auto& [pattern, name] : kPatterns) {
    for (const bool causal : {true, false}) {
      cases.push_back({.name = with_side("mask_", name, causal),
                       .length = 130,
                       .causal = causal,
                       .mask = pattern});
    }
  }
}

void add_shapes(Cases& cases) {
  for (const int64_t length : {1, 2, 3, 15, 16, 31, 33, 64, 127, 128, 129, 130, 257, 1025}) {
    for (const bool causal : {true, false}) {
      cases.push_back({.name = with_side("length_", std::to_string(length), causal),
                       .batch = length > 1000 ? 1 : 2,
                       .length = length,
                       .causal = causal});
      if (length > 1000) std::erase(cases.back().tags, CaseTag::kQuick);
    }
  }
  for (const int64_t head_dim : {1, 3, 17, 32, 48, 64, 80, 96, 128, 256}) {
    for (const bool causal : {true, false}) {
      cases.push_back({.name = with_side("head_dim_", std::to_string(head_dim), causal),
                       .batch = 1,
                       .length = 70,
                       .head_dim = head_dim,
                       .causal = causal});
    }
  }
  cases.push_back({.name = "value_dim_wider", .head_dim = 32, .value_dim = 80});
  cases.push_back({.name = "value_dim_narrower", .head_dim = 64, .value_dim = 17, .causal = false});
  cases.push_back({.name = "value_dim_1", .head_dim = 32, .value_dim = 1});
  cases.push_back({.name = "many_heads", .batch = 5, .length = 40, .heads = 13, .head_dim = 8});
}

/// Heads of 64 and 128 channels, which a GPU walks in chunks of 64 or 32 tokens: lengths at a
/// chunk's end, bands across it, and more chunks than one thread block walks.
void add_chunks(Cases& cases) {
  const std::vector<FeatureMap> two = {kElu, kEluFlip}, three = {kElu, kEluFlip, kTanh1};
  for (const int64_t head_dim : {64, 128}) {
    const std::string channels = std::to_string(head_dim) + "_channels";
    for (const int64_t length : {63, 64, 65, 129}) {
      cases.push_back({.name = "length_" + std::to_string(length) + "_of_" + channels,
                       .batch = 1,
                       .length = length,
                       .head_dim = head_dim,
                       .bandwidth = 20});
    }
    cases.push_back({.name = "segments_of_" + channels,
                     .batch = 1,
                     .length = 600,
                     .heads = 1,
                     .head_dim = head_dim,
                     .window = Window{32, 0},
                     .feature_maps = head_dim == 64 ? three : two,
                     .mask = MaskPattern::kInterior});
    cases.push_back({.name = "dropout_and_mask_of_" + channels,
                     .length = 300,
                     .head_dim = head_dim,
                     .bandwidth = 30,
                     .feature_maps = head_dim == 64 ? three : two,
                     .weights = WeightShape::kScalar,
                     .mask = MaskPattern::kRandom,
                     .near_dropout = 0.1,
                     .layout = Layout::kBhnd});
    // Their norms are hardly more than eps, and must not take digits from other queries' gradients.
    cases.push_back({.name = "extreme_queries_of_" + channels,
                     .length = 130,
                     .head_dim = head_dim,
                     .bandwidth = 0,
                     .extreme_query = 30,
                     .dtypes = {c10::kDouble, c10::kFloat}});
  }
  cases.push_back({.name = "three_maps_of_128_channels",
                   .batch = 1,
                   .length = 290,
                   .heads = 1,
                   .head_dim = 128,
                   .bandwidth = 20,
                   .feature_maps = three,
                   .mask = MaskPattern::kRight});
  cases.push_back({.name = "no_eps_before_the_first_live_token",
                   .length = 100,
                   .head_dim = 64,
                   .eps = 0,
                   .mask = MaskPattern::kLeft});
  cases.push_back({.name = "one_map_of_64_channels",
                   .length = 200,
                   .head_dim = 64,
                   .feature_maps = {kElu},
                   .normaliser = Normaliser::kNone,
                   .far_scale = 0.01});
}

/// Heads with fewer channels than the kernels that walk chunks on a GPU have room for: by number of
/// maps, with dropout and without.
void add_heads_between_sizes(Cases& cases) {
  const std::vector<FeatureMap> one = {kElu}, two = {kElu, kEluFlip},
                                three = {kElu, kEluFlip, kTanh1};
  const auto add = [&cases](int64_t head_dim, const std::string& name, int64_t length,
                            const std::vector<FeatureMap>& maps) -> AttentionCase& {
    cases.push_back({.name = "heads_of_" + std::to_string(head_dim) + "_channels" + name,
                     .batch = 1,
                     .length = length,
                     .head_dim = head_dim,
                     .bandwidth = 20,
                     .feature_maps = maps,
                     .weights = WeightShape::kPerHead,
                     .dtypes = {c10::kFloat, c10::kBFloat16},
                     .tags = {CaseTag::kVerify}});
    return cases.back();
  };
  for (const int64_t head_dim : {40, 48, 56, 80, 96, 120}) {
    add(head_dim, "", 150, two).mask = MaskPattern::kRandom;
    add(head_dim, "_and_three_maps", 130, three).layout = Layout::kBhnd;
    AttentionCase& dropped = add(head_dim, "_with_dropout", 150, two);
    dropped.near_dropout = 0.1, dropped.mask = MaskPattern::kRight;
  }
  for (const int64_t head_dim : {48, 96}) {
    add(head_dim, "_and_one_map", 129, one).shared_key_heads = true;
    add(head_dim, "_less_their_near_field", 130, two).bandwidth = 0;
    AttentionCase& extreme = add(head_dim, "_and_extreme_queries", 130, two);  // see add_chunks
    extreme.bandwidth = 0, extreme.extreme_query = 30, extreme.dtypes = {c10::kFloat};
  }
  AttentionCase& segments = add(96, "_and_three_maps_in_segments", 600, three);
  segments.heads = 1, segments.dtypes = {c10::kFloat};
}

}  // namespace

std::vector<AttentionCase> make_attention_cases() {
  Cases cases;
  add_fields(cases);
  add_windows(cases);
  add_feature_maps(cases);
  add_normalisers(cases);
  add_weights_and_layouts(cases);
  add_segments(cases);
  add_masks(cases);
  add_shapes(cases);
  add_chunks(cases);
  add_heads_between_sizes(cases);
  std::ranges::move(make_gpu_verify_cases(), std::back_inserter(cases));
  std::ranges::move(make_paper_cases(), std::back_inserter(cases));
  std::ranges::move(make_timing_cases(), std::back_inserter(cases));
  std::ranges::move(make_gpu_cases(), std::back_inserter(cases));
  return cases;
}

}  // namespace fmmformer::bench
