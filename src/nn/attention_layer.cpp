// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/nn/attention_layer.h"

#include <ATen/ATen.h>

#include "fmmformer/attention/fast_weight_attention.h"
#include "fmmformer/attention/full_attention.h"
#include "fmmformer/core/random.h"
#include "fmmformer/nn/decoding_memory.h"
#include "nn/linear.h"
#include "nn/weighted_field.h"

namespace fmmformer {

using at::Tensor;

namespace {

BlendRule checked_rule(const AttentionConfig& config, const BlendFields& fields) {
  try {
    config.check();
    return blend_rule(config.blend, fields);
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, "attention: ", error.what());
  }
}

bool has_fields(const FmmOptions& options) {
  return options.window || !options.feature_maps.empty();
}

FastWeightInputs fast_inputs(const AttentionInputs& inputs, const Tensor& gate) {
  return {
      .q = inputs.q, .k = inputs.k, .v = inputs.v, .beta = gate, .token_mask = inputs.token_mask};
}

void check_decodes(const AttentionConfig& config, const AttentionInputs& inputs,
                   const AttentionState& state) {
  TORCH_CHECK_VALUE(config.causal,
                    "attention: this layer is not causal; only a causal one goes on with a text");
  TORCH_CHECK_VALUE(!state.has_begun() || (inputs.q.size(1) == 1 && !inputs.token_mask),
                    "attention: ", inputs.q.size(1),
                    " tokens at once go on with a text; allowed is 1, without a mask, once the "
                    "text has begun");
}

Tensor go_on_with_fields(const AttentionInputs& inputs, const BlendWeights& weights,
                         const FmmOptions& options, std::optional<FmmState>& state) {
  if (!state) {
    auto [out, made] = fmm_attention_prefill(inputs, weights, options);
    state = std::move(made);
    return out;
  }
  const AttentionInputs token{
      .q = inputs.q.squeeze(1), .k = inputs.k.squeeze(1), .v = inputs.v.squeeze(1)};
  return fmm_attention_step(token, *state, weights, options).unsqueeze(1);
}

Tensor go_on_with_fast_weights(const FastWeightInputs& inputs, const FastWeightOptions& options,
                               std::optional<FastWeightState>& state) {
  if (!state) {
    auto [out, made] = fast_weight_attention_prefill(inputs, options);
    state = std::move(made);
    return out;
  }
  const FastWeightInputs token{.q = inputs.q.squeeze(1),
                               .k = inputs.k.squeeze(1),
                               .v = inputs.v.squeeze(1),
                               .beta = inputs.beta.squeeze(1)};
  return fast_weight_attention_step(token, *state, options).unsqueeze(1);
}

/// The blend of a layer as its two operators want it.
struct OperatorWeights {
  std::optional<Tensor> fast;  // of far_weight [r, ..] the first, where that field has fast weights
  BlendWeights fields;         // the rest
};
OperatorWeights by_operator(const BlendWeights& weights, bool has_fast_weights) {
  if (!has_fast_weights) return {.fields = weights};
  OperatorWeights split{.fields = {.near_weight = weights.near_weight}};
  if (!weights.far_weight) return split;
  split.fast = weights.far_weight->select(0, 0);
  const int64_t others = weights.far_weight->size(0) - 1;
  if (others > 0) split.fields.far_weight = weights.far_weight->narrow(0, 1, others);
  return split;
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
    blend_ = register_module("blend", std::make_shared<Blend>(checked_rule(config, fields), fields,
                                                              shape.heads, shape.head_dim));
  }
  if (config.has_fast_weights()) {
    gate_ = register_module("gate",
                            std::make_shared<Linear>(shape.dim, shape.heads, /*with_bias=*/false));
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
  // With dropout, softmax is a band as wide as the sequence, but for fused kernels: several times
  // faster, though their dropout is another.
  if (config_.kind == AttentionKind::kSoftmax && (!drops || full_attention_is_fused(inputs))) {
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

Tensor AttentionLayer::attend_with_fast_weights(const AttentionInputs& inputs,
                                                const FastWeightField& fast,
                                                const BlendWeights& weights,
                                                const FmmOptions& options, const Pass& pass) const {
  const OperatorWeights split = by_operator(weights, /*has_fast_weights=*/true);
  Tensor rest;
  if (has_fields(options)) rest = attend(inputs, split.fields, options, pass);
  const Tensor field = fast_weight_attention(fast_inputs(inputs, fast.gate), fast.options);
  return with_field(rest, field, split.fast);
}

Tensor AttentionLayer::go_on(const AttentionInputs& inputs,
                             const std::optional<FastWeightField>& fast,
                             const BlendWeights& weights, DecodingMemory& memory) const {
  AttentionState& state = memory.layer(layer_);
  check_decodes(config_, inputs, state);
  const FmmOptions options = config_.options(memory.longest);
  const OperatorWeights split = by_operator(weights, fast.has_value());
  Tensor out;
  if (has_fields(options)) out = go_on_with_fields(inputs, split.fields, options, state.fields);
  if (!fast) return out;
  const Tensor field =
      go_on_with_fast_weights(fast_inputs(inputs, fast->gate), fast->options, state.fast);
  return with_field(out, field, split.fast);
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
  std::optional<FastWeightField> fast;
  if (gate_) fast = {gate_->forward(x).sigmoid(), config_.fast_weight_options()};
  if (pass.memory) {
    return go_on(inputs, fast, weights, *pass.memory).reshape({x.size(0) * x.size(1), -1});
  }
  const FmmOptions options = config_.options(x.size(1));
  const Tensor out = fast ? attend_with_fast_weights(inputs, *fast, weights, options, pass)
                          : attend(inputs, weights, options, pass);
  if (pass.on_attention) {
    pass.on_attention({.layer = layer_,
                       .inputs = inputs,
                       .weights = weights,
                       .options = options,
                       .fast = fast,
                       .out = out});
  }
  return out.reshape({x.size(0) * x.size(1), -1});
}

}  // namespace fmmformer
