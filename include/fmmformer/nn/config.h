// SPDX-License-Identifier: Apache-2.0
// What a config says about an attention layer and a transformer block; without torch.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "fmmformer/attention/fast_weight_options.h"
#include "fmmformer/attention/options.h"
#include "fmmformer/core/fields.h"
#include "fmmformer/nn/blend_rule.h"

namespace fmmformer {

enum class AttentionKind {
  kFmm,      // the operator: near field, far fields, blended
  kSoftmax,  // the quadratic baseline
};
enum class Projections {
  kSeparate,  // q, k and v by three linear maps
  kFused,     // by one, whose outputs are laid out per head as [q | k | v]
};
enum class NormPlacement {
  kPre,   // x + f(norm(x))
  kPost,  // norm(x + f(x))
};
enum class Activation { kRelu, kGelu };  // gelu: the exact one
enum class Initialisation {
  kTorch,             // torch's defaults: linear layers uniform in +-1/sqrt(in), embeddings N(0, 1)
  kNormalEmbeddings,  // the same, but embeddings and positions N(0, std): the LRA models
  kNormal,  // weights and embeddings N(0, std), biases 0, norms N(1, std): the language model
};

template <>
struct EnumTable<AttentionKind> {
  static constexpr std::string_view kKind = "attention";
  static std::span<const EnumName<AttentionKind>> entries();
};
template <>
struct EnumTable<Projections> {
  static constexpr std::string_view kKind = "kind of projections";
  static std::span<const EnumName<Projections>> entries();
};
template <>
struct EnumTable<NormPlacement> {
  static constexpr std::string_view kKind = "place of the norm";
  static std::span<const EnumName<NormPlacement>> entries();
};
template <>
struct EnumTable<Activation> {
  static constexpr std::string_view kKind = "activation";
  static std::span<const EnumName<Activation>> entries();
};

template <>
struct EnumTable<Initialisation> {
  static constexpr std::string_view kKind = "initialisation";
  static std::span<const EnumName<Initialisation>> entries();
};

struct AttentionConfig {
  AttentionKind kind = AttentionKind::kFmm;
  bool causal = false;
  int64_t bandwidth = 5;
  std::vector<FeatureMap> feature_maps = {FeatureMap::kElu};
  bool fast_weights = false;
  FastWeightNormaliser fast_weight_normaliser = FastWeightNormaliser::kOutput;
  bool unit_features = false;
  Normaliser normaliser = Normaliser::kRowSum;
  double eps = 1e-6;
  std::optional<double> near_scale;
  double far_scale = 1.0;
  double dropout = 0.0;
  Projections projections = Projections::kSeparate;
  bool bias = true;
  BlendConfig blend;

  static void fields(auto& self, auto&& visit) {
    visit("kind", self.kind, "fmm: near and far field; softmax: the quadratic baseline");
    visit("causal", self.causal, "a token sees only itself and those before it");
    visit("bandwidth", self.bandwidth, Range{.low = 0},
          "near field: keeps |i - j| < bandwidth; 0: no near field");
    visit("feature_maps", self.feature_maps, "far fields, one for each; []: no far field");
    visit("fast_weights", self.fast_weights,
          "the first of feature_maps is of a far field that corrects itself (the delta rule), with "
          "a learned gate; needs causal");
    visit("fast_weight_normaliser", self.fast_weight_normaliser,
          "what of the fast-weight field is divided by sums of keys");
    visit("unit_features", self.unit_features, "divide a token's features by their sum");
    visit("normaliser", self.normaliser, "what a far field is divided by");
    visit("eps", self.eps, Range{.low = 0}, "added to row sums");
    visit("near_scale", self.near_scale, "of the near field's scores; left out: 1/sqrt(head_dim)");
    visit("far_scale", self.far_scale, "multiplies the far fields");
    visit("dropout", self.dropout, Range{0, 0.999}, "on the near field's (or softmax's) weights");
    visit("projections", self.projections, "how q, k and v are computed");
    visit("bias", self.bias, "whether the four projections have one");
    visit("blend", self.blend, "how near and far field are added");
  }

  bool has_fast_weights() const { return kind == AttentionKind::kFmm && fast_weights; }

  /// The options of fmm_attention; for kSoftmax those of a band as wide as `length`, which is the
  /// same thing. Without dropout, and without the fast-weight field: that one is another
  /// operator's.
  FmmOptions options(int64_t length) const;
  /// The options of fast_weight_attention, where has_fast_weights().
  FastWeightOptions fast_weight_options() const;

  /// Throws std::invalid_argument, in words for a config, when the fields contradict each other.
  void check() const;
};

}  // namespace fmmformer
