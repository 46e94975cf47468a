// SPDX-License-Identifier: Apache-2.0
#include "bench/peers.h"

#include <ATen/ATen.h>

#include <array>
#include <limits>
#include <stdexcept>

#include "bench/composite_fields.h"

namespace fmmformer::bench {
namespace {

using NearField = at::Tensor (*)(const Grouped&, const FmmOptions&);

/// Near field, far fields and their weights, as [batch, heads, length, value_dim].
struct Blend {
  const Grouped& g;
  const BlendWeights& weights;
  const FmmOptions& options;

  at::Tensor per_head(const at::Tensor& x) const {
    return x.view({g.batch, g.heads, g.length, x.size(-1)});
  }
  at::Tensor far_weight(int64_t l) const {
    return weights.far_weight ? weights.far_weight->select(0, l) : at::Tensor();
  }
  static at::Tensor weighted(const at::Tensor& x, const at::Tensor& weight) {
    return weight.defined() ? x * weight.to(x.scalar_type()).unsqueeze(-2) : x;
  }

  at::Tensor near(NearField field) const {
    const at::Tensor weight =
        weights.near_weight ? at::atleast_2d(*weights.near_weight) : at::Tensor();
    return weighted(per_head(field(g, options)), weight);
  }

  /// All far fields, one by one or, where the weights allow it, folded into few products.
  at::Tensor far() const {
    const std::vector<FeatureMap>& maps = options.feature_maps;
    const bool per_channel = weights.far_weight && weights.far_weight->size(-1) > 1;
    std::vector<at::Tensor> scales;
    for (size_t l = 0; l < maps.size(); ++l) {
      scales.push_back(per_channel ? at::Tensor() : far_weight(static_cast<int64_t>(l)));
    }
    if (options.causal && !per_channel)
      return per_head(causal_far_fields(g, maps, scales, options));
    at::Tensor sum;
    for (size_t l = 0; l < maps.size(); ++l) {
      const at::Tensor one = options.causal
                                 ? causal_far_fields(g, {&maps[l], 1}, {&scales[l], 1}, options)
                                 : two_sided_far_field(g, maps[l], options);
      const at::Tensor scaled = weighted(per_head(one), far_weight(static_cast<int64_t>(l)));
      sum = sum.defined() ? sum + scaled : scaled;
    }
    return sum;
  }
};

at::Tensor blended(const AttentionInputs& inputs, const BlendWeights& weights,
                   const FmmOptions& options, NearField near_field) {
  const Grouped g = group(inputs);
  const Blend blend{g, weights, options};
  if (options.feature_maps.empty()) return blend.near(near_field).transpose(1, 2);
  at::Tensor far = blend.far();
  if (options.far_scale != 1) far = far * options.far_scale;
  if (!options.window) return far.transpose(1, 2);
  return (blend.near(near_field) + far).transpose(1, 2);
}

at::Tensor run_sdpa(const AttentionInputs& inputs, const BlendWeights&, const FmmOptions& options) {
  return at::scaled_dot_product_attention(inputs.q.transpose(1, 2), inputs.k.transpose(1, 2),
                                          inputs.v.transpose(1, 2), /*attn_mask=*/{},
                                          /*dropout_p=*/0.0, options.causal, options.near_scale)
      .transpose(1, 2);
}

at::Tensor run_composite(const AttentionInputs& inputs, const BlendWeights& weights,
                         const FmmOptions& options) {
  return blended(inputs, weights, options, blocked_near_field);
}

at::Tensor run_dense_near(const AttentionInputs& inputs, const BlendWeights& weights,
                          const FmmOptions& options) {
  return blended(inputs, weights, options, dense_near_field);
}

constexpr int64_t kAnyLength = std::numeric_limits<int64_t>::max();
constexpr std::array kPeers = {
    Peer{"sdpa", "torch's softmax attention over all keys", run_sdpa, Layout::kBhnd, 8192, false},
    Peer{"composite",
         "what a user would write in torch: band by blocks + chunked linear attention + blend",
         run_composite, Layout::kBhnd, kAnyLength, true},
    Peer{"dense_near", "the authors' near field, dense and masked, + the composite's far field",
         run_dense_near, Layout::kBhnd, 8192, true},
};

}  // namespace

std::span<const Peer> peers() { return kPeers; }

const Peer& peer_named(std::string_view name) {
  std::vector<std::string> names;
  for (const Peer& peer : kPeers) {
    if (peer.name == name) return peer;
    names.emplace_back(peer.name);
  }
  std::string text = "unknown peer '" + std::string(name) + "'; allowed: " + join_names(names);
  throw std::invalid_argument(text + ", or none");
}

std::string reason_against(const Peer& peer, const AttentionCase& attention_case) {
  const AttentionCase& c = attention_case;
  if (c.mask != MaskPattern::kNone) return "has no token mask";
  if (c.near_dropout > 0) return "has no dropout by seed";
  if (peer.is_fmm && c.bandwidth == 0 && !c.window && c.feature_maps.empty())
    return "needs a field";
  return "";
}

}  // namespace fmmformer::bench
