// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <vector>

#include "fmmformer/models/model_config.h"
#include "fmmformer/nn/layers.h"
#include "fmmformer/nn/pass.h"
#include "fmmformer/nn/transformer_block.h"

namespace fmmformer {

/// Tokens to vectors: embedding and position, the blocks, the final norm. What all models share.
class Encoder : public torch::nn::Module {
 public:
  explicit Encoder(const ModelConfig& config);

  /// tokens int64 [B, N], N <= max_length; token_mask bool [B, N], none: all are real
  /// -> [B, N, dim]. What comes out at masked places means nothing.
  ///
  /// With a memory in the pass the tokens go on with its text, and token t of that text has the
  /// position code that token t of a sequence of max_length has (positions that count down begin
  /// with max_length - 1), however many tokens there are: what comes out is what that whole
  /// sequence would give here.
  at::Tensor forward(const at::Tensor& tokens, const std::optional<at::Tensor>& token_mask,
                     const Pass& pass) const;

  /// The embedding table [vocabulary, embedding width], for an output that is tied to it.
  const at::Tensor& table() const { return embedding_->weight; }

 private:
  /// Where tokens stand: numbers begin .. begin + count - 1 of a window of max_length.
  struct Place {
    int64_t begin = 0, count = 0;
  };
  Place place_of(const at::Tensor& tokens, const Pass& pass) const;
  /// The codes of these positions [count, width]; undefined: there are none.
  at::Tensor codes_of(const Place& place) const;
  /// Tokens with their positions, and dropout.
  at::Tensor embed(const at::Tensor& tokens, const Pass& pass) const;

  ModelConfig config_;
  DropoutSite embedding_site_, final_site_;
  std::shared_ptr<Embedding> embedding_;
  std::shared_ptr<Embedding> learned_positions_;
  at::Tensor sinusoids_;  // a buffer [max_length, width]
  std::vector<std::shared_ptr<TransformerBlock>> blocks_;
  std::shared_ptr<LayerNorm> final_norm_;
};

}  // namespace fmmformer
