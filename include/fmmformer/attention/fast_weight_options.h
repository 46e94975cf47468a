// SPDX-License-Identifier: Apache-2.0
// The options of fast-weight attention, without torch.
#pragma once

#include "fmmformer/attention/options.h"

namespace fmmformer {

/// What is divided by sums of keys: f(k_j) summed over the tokens so far, without their gates.
enum class FastWeightNormaliser {
  kNone,          // nothing
  kOutput,        // what a query reads: the authors' runs
  kOutputAndKey,  // also what a key reads before it writes
};

template <>
struct EnumTable<FastWeightNormaliser> {
  static constexpr std::string_view kKind = "fast-weight normaliser";
  static std::span<const EnumName<FastWeightNormaliser>> entries();
};

/// Everything about fast-weight attention that is not a tensor; the formula is in
/// fast_weight_attention.h.
struct FastWeightOptions {
  FeatureMap feature_map = FeatureMap::kElu;
  bool unit_features = true;  // f = phi / sum_d phi, per token and head; else f = phi
  FastWeightNormaliser normaliser = FastWeightNormaliser::kOutput;
  double eps = 1e-5;  // of the normalisers
  double far_scale = 1.0;
};

}  // namespace fmmformer
