// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/nn/transformer_block.h"

#include <ATen/ATen.h>

namespace fmmformer {

using at::Tensor;

TransformerBlock::TransformerBlock(const BlockOptions& options, int64_t layer)
    : norm_(options.norm),
      activation_(options.activation),
      attention_site_{options.dropout, 16 * layer + 16},
      hidden_site_{options.dropout, 16 * layer + 17},
      ffn_site_{options.dropout, 16 * layer + 18} {
  const int64_t dim = options.shape.dim;
  attention_ = register_module(
      "attention", std::make_shared<AttentionLayer>(options.attention, options.shape, layer));
  attention_norm_ = register_module("attention_norm", std::make_shared<LayerNorm>(dim));
  ffn_in_ = register_module("ffn_in", std::make_shared<Linear>(dim, options.ffn_dim));
  ffn_out_ = register_module("ffn_out", std::make_shared<Linear>(options.ffn_dim, dim));
  ffn_norm_ = register_module("ffn_norm", std::make_shared<LayerNorm>(dim));
}

Tensor TransformerBlock::add_attention(const Tensor& rows, const Tensor& x,
                                       const std::optional<Tensor>& token_mask,
                                       const Pass& pass) const {
  const Linear& output = attention_->output();
  return residual_dropout(rows, output.product(attention_->attended(x, token_mask, pass)),
                          output.bias, attention_site_, pass);
}

Tensor TransformerBlock::add_ffn(const Tensor& rows, const Tensor& input, const Pass& pass) const {
  Tensor hidden;
  if (activation_ == Activation::kRelu) {
    hidden = relu_dropout(ffn_in_->product(input), ffn_in_->bias, hidden_site_, pass);
  } else if (input.is_cuda()) {
    hidden = gelu_dropout(ffn_in_->product(input), ffn_in_->bias, hidden_site_, pass);
  } else {  // the product adds the bias for nothing, and no sweep of ours would save more
    hidden = dropout(at::gelu(ffn_in_->forward(input)), hidden_site_, pass);
  }
  return residual_dropout(rows, ffn_out_->product(hidden), ffn_out_->bias, ffn_site_, pass);
}

Tensor TransformerBlock::forward(const Tensor& x, const std::optional<Tensor>& token_mask,
                                 const Pass& pass) const {
  return forward_twice({x, x}, token_mask, pass).first;
}

TwoUses TransformerBlock::forward_twice(const TwoUses& x, const std::optional<Tensor>& token_mask,
                                        const Pass& pass) const {
  const auto sizes = x.first.sizes();
  if (norm_ == NormPlacement::kPre) {  // one use: the norm hands its input on
    const NormAndInput in = attention_norm_->forward_beside(x.first);
    const NormAndInput y =
        ffn_norm_->forward_beside(add_attention(in.input.flatten(0, 1), in.norm, token_mask, pass));
    const Tensor out = add_ffn(y.input, y.norm, pass).view(sizes);
    return {out, out};
  }
  const Tensor rows = x.second.flatten(0, 1);
  const TwoUses y = attention_norm_->forward_twice(add_attention(rows, x.first, token_mask, pass));
  const TwoUses out = ffn_norm_->forward_twice(add_ffn(y.second, y.first, pass));
  return {out.first.view(sizes), out.second.view(sizes)};
}

}  // namespace fmmformer
