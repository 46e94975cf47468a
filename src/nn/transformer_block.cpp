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

Tensor TransformerBlock::hidden(const Tensor& x, const Pass& pass) const {
  const Tensor wide = ffn_in_->forward(x);
  if (activation_ == Activation::kRelu) return relu_dropout(wide, hidden_site_, pass);
  return dropout(at::gelu(wide), hidden_site_, pass);
}

Tensor TransformerBlock::forward(const Tensor& x, const std::optional<Tensor>& token_mask,
                                 const Pass& pass) const {
  if (norm_ == NormPlacement::kPre) {
    const Tensor attended = attention_->forward(attention_norm_->forward(x), token_mask, pass);
    const Tensor y = residual_dropout(x, attended, attention_site_, pass);
    const Tensor fed = ffn_out_->forward(hidden(ffn_norm_->forward(y), pass));
    return residual_dropout(y, fed, ffn_site_, pass);
  }
  const Tensor attended = attention_->forward(x, token_mask, pass);
  const Tensor y = attention_norm_->forward(residual_dropout(x, attended, attention_site_, pass));
  const Tensor fed = ffn_out_->forward(hidden(y, pass));
  return ffn_norm_->forward(residual_dropout(y, fed, ffn_site_, pass));
}

}  // namespace fmmformer
