// SPDX-License-Identifier: Apache-2.0
#include "bench/plain_torch.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <cmath>
#include <limits>

#include "bench/torch_features.h"

namespace fmmformer::bench {
namespace {

/// Everything as [B, H, N, D], dead tokens emptied, and who may see whom as [B, 1, N, N].
struct Dense {
  at::Tensor q, k, v;
  at::Tensor offset;  // j - i, [N, N]
  at::Tensor seen;    // both ends alive and, if causal, j <= i
};

Dense make_dense(const AttentionInputs& inputs, const FmmOptions& options) {
  const int64_t length = inputs.q.size(1);
  const at::Tensor live =
      inputs.token_mask ? *inputs.token_mask : at::ones({inputs.q.size(0), length}, at::kBool);
  const auto heads_first = [&live](const at::Tensor& x) {
    return x.transpose(1, 2).masked_fill(~live.unsqueeze(1).unsqueeze(-1), 0);
  };
  const at::Tensor position = at::arange(length);
  Dense dense{heads_first(inputs.q),
              heads_first(inputs.k),
              heads_first(inputs.v),
              position.unsqueeze(0) - position.unsqueeze(1),
              {}};
  dense.seen = live.unsqueeze(1).unsqueeze(-1) & live.unsqueeze(1).unsqueeze(2);
  if (options.causal) dense.seen = dense.seen & (dense.offset <= 0);
  return dense;
}

at::Tensor near_field(const Dense& dense, const AttentionInputs& inputs,
                      const FmmOptions& options) {
  const double scale =
      options.near_scale.value_or(1 / std::sqrt(static_cast<double>(dense.q.size(-1))));
  const at::Tensor band = dense.seen & (dense.offset >= -options.window->left) &
                          (dense.offset <= options.window->right);
  const at::Tensor scores = at::matmul(dense.q * scale, dense.k.transpose(-1, -2))
                                .masked_fill(~band, -std::numeric_limits<double>::infinity());
  // A row without keys would give NaN, and NaN gradients: such rows see a constant and are emptied
  // afterwards.
  const at::Tensor empty = ~band.any(-1, /*keepdim=*/true);
  at::Tensor probabilities = at::softmax(scores.masked_fill(empty, 0), -1).masked_fill(~band, 0);
  if (options.near_dropout > 0) {
    at::Generator generator = at::detail::createCPUGenerator(inputs.dropout_seed->item<int64_t>());
    const double keep = 1 - options.near_dropout;
    const at::Tensor kept = at::rand(probabilities.sizes(), generator, at::kDouble) < keep;
    probabilities = probabilities.masked_fill(~kept, 0) / keep;
  }
  return at::matmul(probabilities, dense.v);
}

at::Tensor far_field(const Dense& dense, FeatureMap map, const FmmOptions& options) {
  const at::Tensor similarity = at::matmul(torch_features(dense.q, map, options),
                                           torch_features(dense.k, map, options).transpose(-1, -2))
                                    .masked_fill(~dense.seen, 0);
  const at::Tensor row_sums = similarity.sum(-1, /*keepdim=*/true);
  // Padding sees nobody: without an eps it would be divided by zero.
  const at::Tensor norm = torch_normaliser(row_sums, map, dense.q.size(2), options)
                              .masked_fill(dense.seen.any(-1, true).logical_not(), 1);
  return at::matmul(similarity / norm, dense.v) * options.far_scale;
}

/// [.., H, Dv] weights beside [B, H, N, Dv] values, in the values' type.
at::Tensor weighted(const at::Tensor& values, const at::Tensor& weight) {
  const at::Tensor full = weight.expand({values.size(1), values.size(3)}).unsqueeze(1);
  return values * full.to(values.scalar_type());
}

}  // namespace

at::Tensor plain_torch_attention(const AttentionInputs& inputs, const BlendWeights& weights,
                                 const FmmOptions& options) {
  const Dense dense = make_dense(inputs, options);
  at::Tensor out = at::zeros_like(dense.v);
  if (options.window) {
    const at::Tensor near = near_field(dense, inputs, options);
    out = out + (weights.near_weight ? weighted(near, *weights.near_weight) : near);
  }
  const int64_t maps = static_cast<int64_t>(options.feature_maps.size());
  for (int64_t l = 0; l < maps; ++l) {
    const at::Tensor far = far_field(dense, options.feature_maps[l], options);
    if (!weights.far_weight) {
      out = out + far;
      continue;
    }
    const at::Tensor all = weights.far_weight->expand({maps, far.size(1), far.size(3)});
    out = out + weighted(far, all[l]);
  }
  return out.transpose(1, 2);
}

}  // namespace fmmformer::bench
