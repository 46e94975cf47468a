// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/nn/config.h"

#include <stdexcept>

namespace fmmformer {

std::span<const EnumName<AttentionKind>> EnumTable<AttentionKind>::entries() {
  static constexpr EnumName<AttentionKind> kEntries[] = {{AttentionKind::kFmm, "fmm"},
                                                         {AttentionKind::kSoftmax, "softmax"}};
  return kEntries;
}

std::span<const EnumName<Projections>> EnumTable<Projections>::entries() {
  static constexpr EnumName<Projections> kEntries[] = {{Projections::kSeparate, "separate"},
                                                       {Projections::kFused, "fused"}};
  return kEntries;
}

std::span<const EnumName<NormPlacement>> EnumTable<NormPlacement>::entries() {
  static constexpr EnumName<NormPlacement> kEntries[] = {{NormPlacement::kPre, "pre"},
                                                         {NormPlacement::kPost, "post"}};
  return kEntries;
}

std::span<const EnumName<Activation>> EnumTable<Activation>::entries() {
  static constexpr EnumName<Activation> kEntries[] = {{Activation::kRelu, "relu"},
                                                      {Activation::kGelu, "gelu"}};
  return kEntries;
}

std::span<const EnumName<Initialisation>> EnumTable<Initialisation>::entries() {
  static constexpr EnumName<Initialisation> kEntries[] = {
      {Initialisation::kTorch, "torch"},
      {Initialisation::kNormalEmbeddings, "normal_embeddings"},
      {Initialisation::kNormal, "normal"}};
  return kEntries;
}

FmmOptions AttentionConfig::options(int64_t length) const {
  if (kind == AttentionKind::kSoftmax) {
    return {.window = window_from_bandwidth(length, causal),
            .causal = causal,
            .near_scale = near_scale};
  }
  const auto first_linear = feature_maps.begin() + (has_fast_weights() ? 1 : 0);
  return {.window = window_from_bandwidth(bandwidth, causal),
          .causal = causal,
          .feature_maps = {first_linear, feature_maps.end()},
          .unit_features = unit_features,
          .normaliser = normaliser,
          .eps = eps,
          .near_scale = near_scale,
          .far_scale = far_scale};
}

FastWeightOptions AttentionConfig::fast_weight_options() const {
  return {.feature_map = feature_maps.front(),
          .unit_features = unit_features,
          .normaliser = fast_weight_normaliser,
          .eps = eps,
          .far_scale = far_scale};
}

void AttentionConfig::check() const {
  if (kind != AttentionKind::kFmm) return;
  if (bandwidth == 0 && feature_maps.empty()) {
    throw std::invalid_argument(
        "bandwidth is 0 and feature_maps is [], so nothing would be attended to; give at least "
        "one of the two");
  }
  if (!fast_weights) return;
  if (feature_maps.empty()) {
    throw std::invalid_argument(
        "fast_weights is true and feature_maps is []: the first of the maps is theirs; give one");
  }
  if (!causal) {
    throw std::invalid_argument(
        "fast_weights is true and causal is false: fast weights are written token by token; set "
        "causal to true");
  }
}

}  // namespace fmmformer
