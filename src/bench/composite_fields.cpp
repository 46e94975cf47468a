// SPDX-License-Identifier: Apache-2.0
#include "bench/composite_fields.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "bench/torch_features.h"

namespace fmmformer::bench {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
constexpr int64_t kFarChunk = 64;  // 128 and 32 are 10-30 % slower, forward and backward, at D 64

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

/// [batch * heads * chunks, 1, 1] from a weight that broadcasts to [heads, 1].
at::Tensor per_chunk(const at::Tensor& weight, const Grouped& g, int64_t chunks) {
  return weight.expand({g.heads, 1})
      .view({1, g.heads, 1, 1})
      .expand({g.batch, g.heads, chunks, 1})
      .reshape({-1, 1, 1});
}

/// What a far field's rows are multiplied by: weight / norm, [batch * heads * chunks, chunk or 1,
/// 1].
struct RowScale {
  const Grouped& g;
  const FmmOptions& options;
  int64_t chunks;

  at::Tensor operator()(const at::Tensor& row_sums, FeatureMap map,
                        const at::Tensor& weight) const {
    const at::Tensor norm = torch_normaliser(row_sums, map, g.length, options);
    return weight.defined() ? per_chunk(weight.to(norm.scalar_type()), g, chunks) / norm
                            : norm.reciprocal();
  }
};

}  // namespace

Grouped group(const AttentionInputs& inputs) {
  const auto flat = [](const at::Tensor& x) { return x.transpose(1, 2).flatten(0, 1); };
  return {flat(inputs.q),   flat(inputs.k),   flat(inputs.v),
          inputs.q.size(0), inputs.q.size(2), inputs.q.size(1)};
}

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
  const at::Tensor query = at::arange(blocks * size, g.q.device()).view({blocks, size, 1});
  const at::Tensor first = (at::arange(blocks, g.q.device()) - before).view({blocks, 1, 1}) * size;
  const at::Tensor key = first + at::arange((1 + before + after) * size, g.q.device());
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

at::Tensor dense_near_field(const Grouped& g, const FmmOptions& options) {
  const Window window = cut_window(options, g.length);
  const at::Tensor position = at::arange(g.length, g.q.device());
  const at::Tensor offset = position.unsqueeze(0) - position.unsqueeze(1);
  const at::Tensor outside = (offset < -window.left) | (offset > window.right);
  const at::Tensor bias =
      at::zeros(offset.sizes(), g.q.options()).masked_fill_(outside, kMinusInfinity);
  const at::Tensor scores = at::bmm(g.q, g.k.transpose(1, 2)) * near_scale(g, options) + bias;
  return at::bmm(at::softmax(scores, -1), g.v);
}

at::Tensor causal_far_fields(const Grouped& g, std::span<const FeatureMap> maps,
                             std::span<const at::Tensor> weights, const FmmOptions& options) {
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
  const RowScale row_scale{g, options, chunks};
  const at::Tensor v = cut(g.v);
  const at::Tensor lower = at::ones({chunk, chunk}, v.options()).tril_();
  at::Tensor inside;
  std::vector<at::Tensor> queries, keys;
  for (size_t l = 0; l < maps.size(); ++l) {
    const at::Tensor q = cut(torch_features(g.q, maps[l], options));
    const at::Tensor k = cut(torch_features(g.k, maps[l], options));
    const at::Tensor similarity = at::bmm(q, k.transpose(1, 2)) * lower;
    const at::Tensor key_sums = before_chunk(k.sum(1).unsqueeze(-1));
    const at::Tensor row_sums = similarity.sum(-1, /*keepdim=*/true) + at::bmm(q, key_sums);
    const at::Tensor scale = row_scale(row_sums, maps[l], weights[l]);
    inside = inside.defined() ? inside + similarity * scale : similarity * scale;
    queries.push_back(q * scale);
    keys.push_back(k);
  }
  const at::Tensor states = before_chunk(at::bmm(at::cat(keys, -1).transpose(1, 2), v));
  const at::Tensor out = at::baddbmm(at::bmm(at::cat(queries, -1), states), inside, v);
  return out.view({groups, chunks * chunk, g.v.size(-1)}).slice(1, 0, g.length);
}

at::Tensor two_sided_far_field(const Grouped& g, FeatureMap map, const FmmOptions& options) {
  const at::Tensor q = torch_features(g.q, map, options);
  const at::Tensor k = torch_features(g.k, map, options);
  const at::Tensor out = at::bmm(q, at::bmm(k.transpose(1, 2), g.v));
  const at::Tensor row_sums = at::bmm(q, k.sum(1).unsqueeze(-1));
  return out / torch_normaliser(row_sums, map, g.length, options);
}

}  // namespace fmmformer::bench
