// SPDX-License-Identifier: Apache-2.0
#include "bench/peers.h"

#include <ATen/ATen.h>

#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "bench/torch_features.h"

namespace fmmformer::bench {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
constexpr int64_t kFarChunk = 64;  // 128 and 32 are 10-30 % slower, forward and backward, at D 64

/// q, k, v as [G, N, D] with G = batch * heads: without a copy when they lie head first.
struct Grouped {
  at::Tensor q, k, v;
  int64_t batch, heads, length;
};

Grouped group(const AttentionInputs& inputs) {
  const auto flat = [](const at::Tensor& x) { return x.transpose(1, 2).flatten(0, 1); };
  return {flat(inputs.q),   flat(inputs.k),   flat(inputs.v),
          inputs.q.size(0), inputs.q.size(2), inputs.q.size(1)};
}

at::Tensor padded(const at::Tensor& x, int64_t front, int64_t back) {
  return front + back == 0 ? x : at::constant_pad_nd(x, {0, 0, front, back});
}

double near_scale(const Grouped& g, const FmmOptions& options) {
  return options.near_scale.value_or(1 / std::sqrt(static_cast<double>(g.q.size(-1))));
}

Window cut_window(const FmmOptions& options, int64_t length) {
  const int64_t right = options.causal ? 0 : options.window->right;
  return {std::min(options.window->left, length - 1), std::min(right, length - 1)};
}

/// Blocks of the band's reach, but not so small that the products become thin.
int64_t near_block(const Window& window) {
  return std::max<int64_t>({window.left, window.right, 16});
}

/// Query blocks against their own and the neighbouring key blocks, masked, softmax: [G, N, Dv].
at::Tensor blocked_near_field(const Grouped& g, const FmmOptions& options) {
  const Window window = cut_window(options, g.length);
  // A multiple of 16 keeps the rows of scores aligned.
  const int64_t size = (near_block(window) + 15) / 16 * 16;
  const int64_t blocks = (g.length + size - 1) / size;
  const int64_t pad = blocks * size - g.length;
  const int64_t before = window.left > 0 ? 1 : 0;
  const int64_t after = window.right > 0 ? 1 : 0;
  const int64_t groups = g.q.size(0);
  const auto neighbours = [&](const at::Tensor& x) {
    const at::Tensor cut = padded(x, before * size, pad + after * size)
                               .reshape({groups, blocks + before + after, size, x.size(-1)});
    std::vector<at::Tensor> parts;
    for (int64_t shift = 0; shift <= before + after; ++shift) {
      parts.push_back(cut.slice(1, shift, shift + blocks));
    }
    return at::cat(parts, 2).flatten(0, 1);
  };
  const at::Tensor query = at::arange(blocks * size).view({blocks, size, 1});
  const at::Tensor first = (at::arange(blocks) - before).view({blocks, 1, 1}) * size;
  const at::Tensor key = first + at::arange((1 + before + after) * size);
  const at::Tensor offset = key - query;
  // Rows of padding see the last blocks' zeros instead of nothing, which would be NaN.
  const at::Tensor seen =
      (key >= 0) & (((key < g.length) & (offset >= -window.left) & (offset <= window.right)) |
                    (query >= g.length));
  const at::Tensor bias =
      at::zeros(seen.sizes(), g.q.options()).masked_fill_(~seen, kMinusInfinity);
  const at::Tensor scores =
      at::baddbmm(bias.unsqueeze(0).expand({groups, -1, -1, -1}).flatten(0, 1),
                  padded(g.q, 0, pad).reshape({groups * blocks, size, g.q.size(-1)}),
                  neighbours(g.k).transpose(1, 2), /*beta=*/1, near_scale(g, options));
  const at::Tensor out = at::bmm(at::softmax(scores, -1), neighbours(g.v));
  return out.view({groups, blocks * size, g.v.size(-1)}).slice(1, 0, g.length);
}

/// The authors' near field: all N x N scores, most of them masked.
at::Tensor dense_near_field(const Grouped& g, const FmmOptions& options) {
  const Window window = cut_window(options, g.length);
  const at::Tensor position = at::arange(g.length);
  const at::Tensor offset = position.unsqueeze(0) - position.unsqueeze(1);
  const at::Tensor outside = (offset < -window.left) | (offset > window.right);
  const at::Tensor bias =
      at::zeros(offset.sizes(), g.q.options()).masked_fill_(outside, kMinusInfinity);
  const at::Tensor scores = at::bmm(g.q, g.k.transpose(1, 2)) * near_scale(g, options) + bias;
  return at::bmm(at::softmax(scores, -1), g.v);
}

/// Causal linear attention in chunks: inside a chunk by its matrix, before it by the sum of k v^T
/// up to there.
at::Tensor chunked_far_field(const Grouped& g, FeatureMap map, const FmmOptions& options) {
  const int64_t chunk = std::min(kFarChunk, g.length);
  const int64_t chunks = (g.length + chunk - 1) / chunk;
  const int64_t pad = chunks * chunk - g.length;
  const int64_t groups = g.q.size(0);
  const auto cut = [&](const at::Tensor& x) {
    return padded(x, 0, pad).reshape({groups * chunks, chunk, x.size(-1)});
  };
  const auto before_chunk = [&](const at::Tensor& sums) {
    const at::Tensor by_chunk = sums.view({groups, chunks, sums.size(1), sums.size(2)});
    return (by_chunk.cumsum(1) - by_chunk).view(sums.sizes());
  };
  const at::Tensor q = cut(torch_features(g.q, map, options));
  const at::Tensor k = cut(torch_features(g.k, map, options));
  const at::Tensor v = cut(g.v);
  const at::Tensor lower = at::ones({chunk, chunk}, q.options()).tril_();
  const at::Tensor inside = at::bmm(q, k.transpose(1, 2)) * lower;
  const at::Tensor states = before_chunk(at::bmm(k.transpose(1, 2), v));
  at::Tensor out = at::baddbmm(at::bmm(q, states), inside, v);
  if (options.normaliser == Normaliser::kRowSum) {
    const at::Tensor key_sums = before_chunk(k.sum(1).unsqueeze(-1));
    const at::Tensor row_sums = inside.sum(-1, /*keepdim=*/true) + at::bmm(q, key_sums);
    out = out / torch_normaliser(row_sums, map, g.length, options);
  } else if (options.normaliser == Normaliser::kInvSqrtLength) {
    out = out / std::sqrt(static_cast<double>(g.length));
  }
  return out.view({groups, chunks * chunk, g.v.size(-1)}).slice(1, 0, g.length);
}

/// Two-sided linear attention: one state for all queries.
at::Tensor two_sided_far_field(const Grouped& g, FeatureMap map, const FmmOptions& options) {
  const at::Tensor q = torch_features(g.q, map, options);
  const at::Tensor k = torch_features(g.k, map, options);
  const at::Tensor out = at::bmm(q, at::bmm(k.transpose(1, 2), g.v));
  const at::Tensor row_sums = at::bmm(q, k.sum(1).unsqueeze(-1));
  return out / torch_normaliser(row_sums, map, g.length, options);
}

using NearField = at::Tensor (*)(const Grouped&, const FmmOptions&);

at::Tensor blended(const AttentionInputs& inputs, const BlendWeights& weights,
                   const FmmOptions& options, NearField near_field) {
  const Grouped g = group(inputs);
  const int64_t value_dim = g.v.size(-1);
  const auto per_head = [&](const at::Tensor& x) {
    return x.view({g.batch, g.heads, g.length, value_dim});
  };
  const auto scaled = [&](const at::Tensor& x, const at::Tensor& weight) {
    return x * weight.to(x.scalar_type()).unsqueeze(-2);
  };
  at::Tensor out;
  if (options.window) {
    out = per_head(near_field(g, options));
    if (weights.near_weight) out = scaled(out, at::atleast_2d(*weights.near_weight));
  }
  const auto maps = static_cast<int64_t>(options.feature_maps.size());
  for (int64_t l = 0; l < maps; ++l) {
    const auto far_field = options.causal ? chunked_far_field : two_sided_far_field;
    at::Tensor far = per_head(far_field(g, options.feature_maps[l], options));
    if (weights.far_weight) far = scaled(far, weights.far_weight->select(0, l));
    if (options.far_scale != 1) far = far * options.far_scale;
    out = out.defined() ? out + far : far;
  }
  return out.transpose(1, 2);
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
