// SPDX-License-Identifier: Apache-2.0
// How near and far field are added, as data. Every rule that the authors ran, and the paper's own,
// is a setting of one formula:
//
//   out = near S + far sum_l kernel_l L_l
//
// where S is the near field and L_l the far field of feature map l. Each of the three weights is
// fixed or learned, and one number, one a head, or one a head and channel. No torch here;
// blend.h turns a rule into parameters.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "fmmformer/core/fields.h"

namespace fmmformer {

enum class WeightShape { kScalar, kPerHead, kPerChannel };
enum class WeightMap {
  kRaw,      // the parameter is the weight
  kSigmoid,  // its sigmoid is: positive, as the paper says
};
enum class WeightSource {
  kFixed,
  kLearned,
  kTied,               // far only: 1 - near
  kLearnedAfterFirst,  // kernels only: L_1 + c_2 L_2 + ...
};

/// The named rules, as the published commands have them. Those named after a benchmark have
/// no weight where only one of the two fields exists (the authors' "band" and "linear" rows).
enum class BlendPreset {
  kSum,            // S + sum_l L_l
  kPaper,          // sigmoid(a) S + sigmoid(b) sum_l L_l, a = 0, b = 1 per head
  kCopy,           // a S + sum_l c_l L_l, per channel, a = 0, c_l = 1/r
  kListops,        // a S + b (c_1 L_1 + c_2 L_2), a = 1, b = 0 per head, c = (1, 0)
  kText,           // S + b mean_l L_l, b = 0 per channel
  kRetrieval,      // a S + c_1 L_1 + c_2 L_2, a = 0 per head, c = (1, 0)
  kImage,          // S + b (L_1 + c_2 L_2), b = 0 per channel, c_2 = 0
  kPathfinder,     // a S + (1 - a) (L_1 + c_2 L_2), a = 0.5, c_2 = 0
  kLanguageModel,  // a S + mean_l L_l, a = 0 per channel
  kFastWeights,    // a S + b (c_1 L_1 + c_2 L_2), a = 0, b = 1 per channel, c = (1, 0); L_1 is the
                   // fast-weight field
};

template <>
struct EnumTable<WeightShape> {
  static constexpr std::string_view kKind = "shape of a weight";
  static std::span<const EnumName<WeightShape>> entries();
};
template <>
struct EnumTable<WeightMap> {
  static constexpr std::string_view kKind = "map of a weight";
  static std::span<const EnumName<WeightMap>> entries();
};
template <>
struct EnumTable<WeightSource> {
  static constexpr std::string_view kKind = "source of a weight";
  static std::span<const EnumName<WeightSource>> entries();
};
template <>
struct EnumTable<BlendPreset> {
  static constexpr std::string_view kKind = "blend rule";
  static std::span<const EnumName<BlendPreset>> entries();
};

/// A rule, spelled out. `initial` is the weight itself when fixed, else where its parameter starts
/// (the logit, for a sigmoid).
struct BlendRule {
  WeightMap map = WeightMap::kRaw;  // of the learned near and far weights

  WeightSource near = WeightSource::kFixed;
  WeightShape near_shape = WeightShape::kScalar;
  double near_initial = 1;

  WeightSource far = WeightSource::kFixed;
  WeightShape far_shape = WeightShape::kScalar;
  double far_initial = 1;

  WeightSource kernels = WeightSource::kFixed;
  WeightShape kernel_shape = WeightShape::kScalar;
  std::vector<double> kernel_initial;  // one a feature map

  bool normalise = false;  // divide all weights by near + sum_l far kernel_l

  friend bool operator==(const BlendRule&, const BlendRule&) = default;
};

/// What a user writes: a rule's name, and details that differ from it.
struct BlendConfig {
  BlendPreset rule = BlendPreset::kPaper;
  std::optional<WeightMap> map;
  std::optional<WeightSource> near;
  std::optional<WeightShape> near_shape;
  std::optional<double> near_initial;
  std::optional<WeightSource> far;
  std::optional<WeightShape> far_shape;
  std::optional<double> far_initial;
  std::optional<WeightSource> kernels;
  std::optional<WeightShape> kernel_shape;
  std::optional<std::vector<double>> kernel_initial;
  std::optional<bool> normalise;

  static void fields(auto& self, auto&& visit) {
    visit("rule", self.rule, "a named rule; what follows overrides its details");
    visit("map", self.map, "raw, or sigmoid: learned near and far weights stay positive");
    visit("near", self.near, "fixed or learned");
    visit("near_shape", self.near_shape, "scalar, per_head or per_channel");
    visit("near_initial", self.near_initial, "the weight, or where its parameter starts");
    visit("far", self.far, "fixed, learned or tied (1 - near)");
    visit("far_shape", self.far_shape, "scalar, per_head or per_channel");
    visit("far_initial", self.far_initial, "the weight, or where its parameter starts");
    visit("kernels", self.kernels,
          "coefficients of the feature maps: fixed, learned or "
          "learned_after_first");
    visit("kernel_shape", self.kernel_shape, "scalar, per_head or per_channel");
    visit("kernel_initial", self.kernel_initial, "one number a feature map");
    visit("normalise", self.normalise, "divide the weights by their sum");
  }
};

/// The fields that a layer has.
struct BlendFields {
  bool near = true;
  int64_t kernels = 0;  // feature maps; 0: no far field
};

/// The rule that a config means for these fields. Throws std::invalid_argument when its details
/// contradict each other or the fields.
BlendRule blend_rule(const BlendConfig& config, const BlendFields& fields);

}  // namespace fmmformer
