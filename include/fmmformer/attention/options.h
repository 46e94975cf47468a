// SPDX-License-Identifier: Apache-2.0
// The options of FMM attention, without torch: what the operator, its reference, configs and the
// command line share.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "fmmformer/core/named_enum.h"

namespace fmmformer {

inline constexpr int64_t kMaxHeadDim =
    256;  // of D and Dv; a row of both still fits the caches and the registers' tiles
inline constexpr int64_t kMaxFeatureMaps = 8;  // the paper uses up to 3

/// The keys that a query sees in the near field: -left <= j - i <= right, both inclusive (as
/// FlashAttention counts).
struct Window {
  int64_t left = 0;
  int64_t right = 0;
  friend bool operator==(const Window&, const Window&) = default;
};

/// The paper's bandwidth k keeps |i - j| < k: (k-1, 0) when causal, (k-1, k-1) otherwise; 0 means
/// no near field. Throws std::invalid_argument for a negative bandwidth.
std::optional<Window> window_from_bandwidth(int64_t bandwidth, bool causal);

/// phi, applied to every element of q and k. All but kTanh and kIdentity are non-negative.
enum class FeatureMap {
  kElu,       // elu(x) + 1
  kEluFlip,   // elu(-x) + 1
  kTanh1,     // tanh(x) + 1: what the authors ran
  kTanh,      // tanh(x): what the paper prints; may make the normaliser vanish, hence its guard
  kRelu,      // max(x, 0)
  kSoftplus,  // log(1 + exp(x))
  kIdentity,  // x
};

/// Whether phi takes both signs, so that a row sum can vanish.
constexpr bool is_signed(FeatureMap map) {
  return map == FeatureMap::kTanh || map == FeatureMap::kIdentity;
}

/// What a far field is divided by; s is the row sum of <f(q_i), f(k_j)> over the keys in reach.
enum class Normaliser {
  kRowSum,  // s + eps; for signed maps s where |s| > eps, else copysign(eps, s), without gradient
            // there
  kInvSqrtLength,  // sqrt(N), N with padding: what the authors' LRA code does
  kNone,           // 1
};

template <>
struct EnumTable<FeatureMap> {
  static constexpr std::string_view kKind = "feature map";
  static std::span<const EnumName<FeatureMap>> entries();
};
template <>
struct EnumTable<Normaliser> {
  static constexpr std::string_view kKind = "normaliser";
  static std::span<const EnumName<Normaliser>> entries();
};

/// Everything about FMM attention that is not a tensor; the formula is in fmm_attention.h.
struct FmmOptions {
  std::optional<Window> window;          // none: no near field
  bool causal = false;                   // cuts band and reach at j <= i
  std::vector<FeatureMap> feature_maps;  // empty: no far field; may repeat
  bool unit_features = false;            // f = phi / sum_d phi, per token and head; else f = phi
  Normaliser normaliser = Normaliser::kRowSum;
  double eps = 1e-6;                 // of kRowSum
  std::optional<double> near_scale;  // none: 1 / sqrt(D)
  double far_scale = 1.0;
  double near_dropout = 0.0;  // on the band's probabilities: rounded to a multiple of 2^-15, at
                              // most 1 - 2^-15; above 0 needs AttentionInputs::dropout_seed
};

}  // namespace fmmformer
