// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/nn/config.h"

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
  return {.window = window_from_bandwidth(bandwidth, causal),
          .causal = causal,
          .feature_maps = feature_maps,
          .unit_features = unit_features,
          .normaliser = normaliser,
          .eps = eps,
          .near_scale = near_scale,
          .far_scale = far_scale};
}

}  // namespace fmmformer
