// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/nn/attention_layer.h"

#include <ATen/ATen.h>

#include "fmmformer/attention/full_attention.h"
#include "fmmformer/core/random.h"
#include "fmmformer/nn/decoding_memory.h"
#include "nn/linear.h"

namespace fmmformer {

using at::Tensor;

namespace {

BlendRule rule_of(const AttentionConfig& config, const BlendFields& fields) {
  try {
    return blend_rule(config.blend, fields);
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, error.what());
  }
}

/// Torch's fused softmax is several times faster on a GPU than a band as wide as the sequence.
bool draws_in_torch(const Tensor& q) {
  return q.is_cuda() && (q.scalar_type() == at::kBFloat16 || q.scalar_type() == at::kHalf);
}

}  // namespace

AttentionLayer::AttentionLayer(const AttentionConfig& config, const AttentionShape& shape,
                               int64_t layer)
    : config_(config), shape_(shape), layer_(layer) {
  const int64_t width = shape.heads * shape.head_dim;
  if (config.projections == Projections::kFused) {
    fused_ = register_module("qkv", std::make_shared<Linear>(shape.dim, 3 * width, config.bias));
  } else {
    query_ = register_module("query", std::make_shared<Linear>(shape.dim, width, config.bias));
    key_ = register_module("key", std::make_shared<Linear>(shape.dim, width, config.bias));
    value_ = register_module("value", std::make_shared<Linear>(shape.dim, width, config.bias));
  }
  output_ = register_module("output", std::make_shared<Linear>(width, shape.dim, config.bias));
  if (config.kind == AttentionKind::kFmm) {
    const BlendFields fields{.near = config.bandwidth > 0,
                             .kernels = static_cast<int64_t>(config.feature_maps.size())};
    TORCH_CHECK_VALUE(fields.near || fields.kernels > 0,
                      "attention: bandwidth is 0 and there are no feature_maps, so nothing would "
                      "be attended to; give at least one of the two");
    blend_ = register_module("blend", std::make_shared<Blend>(rule_of(config, fields), fields,
                                                              shape.heads, shape.head_dim));
  }
}

AttentionInputs AttentionLayer::project(const Tensor& x) const {
  const auto per_head = [&](const Tensor& y, int64_t width) {
    return y.view({x.size(0), x.size(1), shape_.heads, width});
  };
  if (fused_) {
    // Views of one tensor: the operator reads any strides.
    const auto parts = per_head(fused_->forward(x), 3 * shape_.head_dim).split(shape_.head_dim, -1);
    return {.q = parts[0], .k = parts[1], .v = parts[2]};
  }
  const auto [q, k, v] = linear_thrice(
      x, {LinearMap{query_->weight, query_->bias}, LinearMap{key_->weight, key_->bias},
          LinearMap{value_->weight, value_->bias}});
  return {.q = per_head(q, shape_.head_dim),
          .k = per_head(k, shape_.head_dim),
          .v = per_head(v, shape_.head_dim)};
}

Tensor AttentionLayer::attend(const AttentionInputs& inputs, const BlendWeights& weights,
                              const FmmOptions& options, const Pass& pass) const {
  const bool drops = pass.training && config_.dropout > 0 && options.window;
  if (config_.kind == AttentionKind::kSoftmax && (!drops || draws_in_torch(inputs.q))) {
    return full_attention(inputs, {.causal = config_.causal,
                                   .scale = config_.near_scale,
                                   .dropout = drops ? config_.dropout : 0.0});
  }
  if (!drops) return fmm_attention(inputs, weights, options);
  TORCH_CHECK_VALUE(pass.dropout_seed.defined(),
                    "attention: the pass is a training one but has no dropout_seed");
  AttentionInputs with_seed = inputs;
  // A small operation on the device, so that a captured graph replays with the seed of its step.
  const auto layer_bits = static_cast<int64_t>(derive_seed(0, "near dropout", layer_));
  with_seed.dropout_seed = pass.dropout_seed.bitwise_xor(layer_bits);
  FmmOptions with_dropout = options;
  with_dropout.near_dropout = config_.dropout;
  return fmm_attention(with_seed, weights, with_dropout);
}

Tensor AttentionLayer::go_on(const AttentionInputs& inputs, const BlendWeights& weights,
                             DecodingMemory& memory) const {
  const auto layer = static_cast<size_t>(layer_);
  if (memory.layers.size() <= layer) memory.layers.resize(layer + 1);
  std::optional<FmmState>& state = memory.layers[layer];
  const FmmOptions options = config_.options(memory.longest);
  if (!state) {
    auto [out, made] = fmm_attention_prefill(inputs, weights, options);
    state = std::move(made);
    return out;
  }
  TORCH_CHECK_VALUE(inputs.q.size(1) == 1 && !inputs.token_mask, "attention: ", inputs.q.size(1),
                    " tokens at once go on with a text; allowed is 1, without a mask, once the "
                    "text has begun");
  const AttentionInputs token = {
      .q = inputs.q.squeeze(1), .k = inputs.k.squeeze(1), .v = inputs.v.squeeze(1)};
  return fmm_attention_step(token, *state, weights, options).unsqueeze(1);
}

Tensor AttentionLayer::forward(const Tensor& x, const std::optional<Tensor>& token_mask,
                               const Pass& pass) const {
  return output_->forward(attended(x, token_mask, pass)).view(x.sizes());
}

Tensor AttentionLayer::attended(const Tensor& x, const std::optional<Tensor>& token_mask,
                                const Pass& pass) const {
  AttentionInputs inputs = project(x);
  inputs.token_mask = token_mask;
  const BlendWeights weights = blend_ ? blend_->forward() : BlendWeights{};
  if (pass.memory) {
    return go_on(inputs, weights, *pass.memory).reshape({x.size(0) * x.size(1), -1});
  }
  const FmmOptions options = config_.options(x.size(1));
  const Tensor out = attend(inputs, weights, options, pass);
  if (pass.on_attention) {
    pass.on_attention(
        {.layer = layer_, .inputs = inputs, .weights = weights, .options = options, .out = out});
  }
  return out.reshape({x.size(0) * x.size(1), -1});
}

}  // namespace fmmformer
