// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/attention/options.h"

#include "fmmformer/attention/fast_weight_options.h"

namespace fmmformer {

std::span<const EnumName<FeatureMap>> EnumTable<FeatureMap>::entries() {
  static constexpr EnumName<FeatureMap> kEntries[] = {
      {FeatureMap::kElu, "elu"},           {FeatureMap::kEluFlip, "elu_flip"},
      {FeatureMap::kTanh1, "tanh1"},       {FeatureMap::kTanh, "tanh"},
      {FeatureMap::kRelu, "relu"},         {FeatureMap::kSoftplus, "softplus"},
      {FeatureMap::kIdentity, "identity"},
  };
  return kEntries;
}

std::span<const EnumName<Normaliser>> EnumTable<Normaliser>::entries() {
  static constexpr EnumName<Normaliser> kEntries[] = {
      {Normaliser::kRowSum, "row_sum"},
      {Normaliser::kInvSqrtLength, "inv_sqrt_length"},
      {Normaliser::kNone, "none"},
  };
  return kEntries;
}

std::span<const EnumName<FastWeightNormaliser>> EnumTable<FastWeightNormaliser>::entries() {
  static constexpr EnumName<FastWeightNormaliser> kEntries[] = {
      {FastWeightNormaliser::kNone, "none"},
      {FastWeightNormaliser::kOutput, "output"},
      {FastWeightNormaliser::kOutputAndKey, "output_and_key"},
  };
  return kEntries;
}

std::optional<Window> window_from_bandwidth(int64_t bandwidth, bool causal) {
  if (bandwidth < 0) {
    throw std::invalid_argument(
        "bandwidth is " + std::to_string(bandwidth) +
        "; allowed: 0 (no near field) or more, keeping |i - j| < bandwidth");
  }
  if (bandwidth == 0) return std::nullopt;
  return Window{bandwidth - 1, causal ? 0 : bandwidth - 1};
}

}  // namespace fmmformer
