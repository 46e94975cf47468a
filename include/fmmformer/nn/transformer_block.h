// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "fmmformer/nn/attention_layer.h"
#include "fmmformer/nn/dropout.h"

namespace fmmformer {

struct BlockOptions {
  AttentionShape shape;
  int64_t ffn_dim = 0;
  NormPlacement norm = NormPlacement::kPost;
  Activation activation = Activation::kRelu;
  double dropout = 0;
  AttentionConfig attention;
};

/// Attention, then a feed-forward network of two linear maps, each added to its input:
///   pre:   x += drop(attention(norm(x)));      x += ffn(norm(x))
///   post:  x = norm(x + drop(attention(x)));   x = norm(x + ffn(x))
///   ffn(x) = drop(linear(drop(activation(linear(x)))))
/// x [B, N, dim] -> [B, N, dim].
class TransformerBlock : public torch::nn::Module {
 public:
  TransformerBlock(const BlockOptions& options, int64_t layer);

  at::Tensor forward(const at::Tensor& x, const std::optional<at::Tensor>& token_mask,
                     const Pass& pass) const;
  /// The same for a chain of blocks, which use x in two places: attention, and what it is added to.
  TwoUses forward_twice(const TwoUses& x, const std::optional<at::Tensor>& token_mask,
                        const Pass& pass) const;

 private:
  // Rows of tokens [B * N, dim]: products on them are whole tensors, not views, and may change in
  // place; the bias of a product is added where the next sweep over memory passes anyway.
  at::Tensor add_attention(const at::Tensor& rows, const at::Tensor& x,
                           const std::optional<at::Tensor>& token_mask, const Pass& pass) const;
  at::Tensor add_ffn(const at::Tensor& rows, const at::Tensor& input, const Pass& pass) const;

  NormPlacement norm_;
  Activation activation_;
  DropoutSite attention_site_, hidden_site_, ffn_site_;
  std::shared_ptr<AttentionLayer> attention_;
  std::shared_ptr<LayerNorm> attention_norm_, ffn_norm_;
  std::shared_ptr<Linear> ffn_in_, ffn_out_;
};

/// The sites of dropout outside the blocks, which have 16 l + 16 and up.
inline constexpr int64_t kEmbeddingSite = 1, kFinalSite = 2;

}  // namespace fmmformer
