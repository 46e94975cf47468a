// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/nn/blend_rule.h"

#include <stdexcept>
#include <string>

namespace fmmformer {

std::span<const EnumName<WeightShape>> EnumTable<WeightShape>::entries() {
  static constexpr EnumName<WeightShape> kEntries[] = {{WeightShape::kScalar, "scalar"},
                                                       {WeightShape::kPerHead, "per_head"},
                                                       {WeightShape::kPerChannel, "per_channel"}};
  return kEntries;
}

std::span<const EnumName<WeightMap>> EnumTable<WeightMap>::entries() {
  static constexpr EnumName<WeightMap> kEntries[] = {{WeightMap::kRaw, "raw"},
                                                     {WeightMap::kSigmoid, "sigmoid"}};
  return kEntries;
}

std::span<const EnumName<WeightSource>> EnumTable<WeightSource>::entries() {
  static constexpr EnumName<WeightSource> kEntries[] = {
      {WeightSource::kFixed, "fixed"},
      {WeightSource::kLearned, "learned"},
      {WeightSource::kTied, "tied"},
      {WeightSource::kLearnedAfterFirst, "learned_after_first"}};
  return kEntries;
}

std::span<const EnumName<BlendPreset>> EnumTable<BlendPreset>::entries() {
  static constexpr EnumName<BlendPreset> kEntries[] = {
      {BlendPreset::kSum, "sum"},
      {BlendPreset::kPaper, "paper"},
      {BlendPreset::kCopy, "copy"},
      {BlendPreset::kListops, "listops"},
      {BlendPreset::kText, "text"},
      {BlendPreset::kRetrieval, "retrieval"},
      {BlendPreset::kImage, "image"},
      {BlendPreset::kPathfinder, "pathfinder"},
      {BlendPreset::kLanguageModel, "language_model"},
      {BlendPreset::kFastWeights, "fast_weights"}};
  return kEntries;
}

namespace {

enum class KernelStart { kOnes, kMean, kFirst };

/// One row of the table: a rule whose kernel coefficients are not yet counted out.
struct PresetRow {
  BlendPreset name;
  BlendRule rule;
  KernelStart start = KernelStart::kOnes;
  bool weighs_single_fields = false;  // keeps its weights where only one field exists
  bool weighs_single_kernel = false;  // learns a coefficient even when there is but one map
};

constexpr auto kFixed = WeightSource::kFixed, kLearned = WeightSource::kLearned;
constexpr auto kAfterFirst = WeightSource::kLearnedAfterFirst;
constexpr auto kPerHead = WeightShape::kPerHead, kPerChannel = WeightShape::kPerChannel;

const PresetRow kPresets[] = {
    {.name = BlendPreset::kSum, .rule = {}},
    {.name = BlendPreset::kPaper,
     .rule = {.map = WeightMap::kSigmoid,
              .near = kLearned,
              .near_shape = kPerHead,
              .near_initial = 0,
              .far = kLearned,
              .far_shape = kPerHead,
              .far_initial = 1},
     .weighs_single_fields = true},
    {.name = BlendPreset::kCopy,
     .rule = {.near = kLearned,
              .near_shape = kPerChannel,
              .near_initial = 0,
              .kernels = kLearned,
              .kernel_shape = kPerChannel},
     .start = KernelStart::kMean,
     .weighs_single_fields = true,
     .weighs_single_kernel = true},
    {.name = BlendPreset::kListops,
     .rule = {.near = kLearned,
              .near_shape = kPerHead,
              .near_initial = 1,
              .far = kLearned,
              .far_shape = kPerHead,
              .far_initial = 0,
              .kernels = kLearned},
     .start = KernelStart::kFirst},
    {.name = BlendPreset::kText,
     .rule = {.far = kLearned, .far_shape = kPerChannel, .far_initial = 0},
     .start = KernelStart::kMean},
    {.name = BlendPreset::kRetrieval,
     .rule = {.near = kLearned, .near_shape = kPerHead, .near_initial = 0, .kernels = kLearned},
     .start = KernelStart::kFirst},
    {.name = BlendPreset::kImage,
     .rule = {.far = kLearned, .far_shape = kPerChannel, .far_initial = 0, .kernels = kAfterFirst},
     .start = KernelStart::kFirst},
    {.name = BlendPreset::kPathfinder,
     .rule = {.near = kLearned,
              .near_initial = 0.5,
              .far = WeightSource::kTied,
              .kernels = kAfterFirst},
     .start = KernelStart::kFirst},
    {.name = BlendPreset::kLanguageModel,
     .rule = {.near = kLearned, .near_shape = kPerChannel, .near_initial = 0},
     .start = KernelStart::kMean},
    {.name = BlendPreset::kFastWeights,
     .rule = {.near = kLearned,
              .near_shape = kPerChannel,
              .near_initial = 0,
              .far = kLearned,
              .far_shape = kPerChannel,
              .far_initial = 1,
              .kernels = kLearned},
     .start = KernelStart::kFirst}};

BlendRule preset_rule(BlendPreset name, const BlendFields& fields) {
  for (const PresetRow& row : kPresets) {
    if (row.name != name) continue;
    BlendRule rule = row.rule;
    if (!(fields.near && fields.kernels > 0) && !row.weighs_single_fields) {
      rule.near = rule.far = kFixed;
      rule.near_initial = rule.far_initial = 1;
    }
    if (fields.kernels == 1 && !row.weighs_single_kernel) rule.kernels = kFixed;
    rule.kernel_initial.assign(static_cast<size_t>(fields.kernels), 1.0);
    for (int64_t l = 0; l < fields.kernels; ++l) {
      double& initial = rule.kernel_initial[static_cast<size_t>(l)];
      if (row.start == KernelStart::kMean) initial = 1.0 / static_cast<double>(fields.kernels);
      if (row.start == KernelStart::kFirst && l > 0) initial = 0;
    }
    return rule;
  }
  throw std::logic_error("a blend preset without a row");
}

template <typename T>
void override_with(const std::optional<T>& detail, T& value) {
  if (detail) value = *detail;
}

void require(bool holds, const std::string& text) {
  if (!holds) throw std::invalid_argument("blend: " + text);
}

}  // namespace

BlendRule blend_rule(const BlendConfig& config, const BlendFields& fields) {
  BlendRule rule = preset_rule(config.rule, fields);
  override_with(config.map, rule.map);
  override_with(config.near, rule.near);
  override_with(config.near_shape, rule.near_shape);
  override_with(config.near_initial, rule.near_initial);
  override_with(config.far, rule.far);
  override_with(config.far_shape, rule.far_shape);
  override_with(config.far_initial, rule.far_initial);
  override_with(config.kernels, rule.kernels);
  override_with(config.kernel_shape, rule.kernel_shape);
  override_with(config.kernel_initial, rule.kernel_initial);
  override_with(config.normalise, rule.normalise);

  require(rule.near == kFixed || rule.near == kLearned,
          "near is '" + std::string(enum_name(rule.near)) + "'; allowed: fixed, learned");
  require(rule.far != kAfterFirst,
          "far is 'learned_after_first'; allowed: fixed, learned, tied (1 - near)");
  require(rule.kernels != WeightSource::kTied,
          "kernels is 'tied'; allowed: fixed, learned, learned_after_first");
  require(rule.far != WeightSource::kTied || fields.near,
          "far is 'tied' to the near field's weight, but there is no near field; set far to fixed "
          "or learned, or give a bandwidth");
  const auto count = static_cast<int64_t>(rule.kernel_initial.size());
  require(count == fields.kernels, "kernel_initial has " + std::to_string(count) +
                                       " numbers; wanted one for each of the " +
                                       std::to_string(fields.kernels) + " feature maps");
  return rule;
}

}  // namespace fmmformer
