// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/models/encoder.h"

#include <ATen/ATen.h>

#include <cmath>
#include <string>

#include "fmmformer/nn/decoding_memory.h"
#include "fmmformer/nn/positions.h"

namespace fmmformer {

using at::Tensor;

namespace {

bool is_concatenated(const ModelConfig& config) {
  return config.positions == Positions::kSinusoidConcatenated;
}

BlockOptions block_options(const ModelConfig& config) {
  return {.shape = {.dim = config.dim, .heads = config.heads, .head_dim = config.width_of_head()},
          .ffn_dim = config.ffn_dim,
          .norm = config.norm,
          .activation = config.activation,
          .dropout = config.dropout,
          .attention = config.attention};
}

}  // namespace

Encoder::Encoder(const ModelConfig& config)
    : config_(config),
      embedding_site_{config.embedding_dropout, kEmbeddingSite},
      final_site_{config.final_dropout, kFinalSite} {
  TORCH_CHECK_VALUE(!is_concatenated(config) || config.dim % 4 == 0,
                    "model: with sinusoid_concatenated positions dim must be a multiple of 4, is ",
                    config.dim);
  const int64_t width = is_concatenated(config) ? config.dim / 2 : config.dim;
  embedding_ = register_module("embedding", std::make_shared<Embedding>(config.vocabulary, width));
  switch (config.positions) {
    case Positions::kNone:
      break;
    case Positions::kLearned:
      learned_positions_ =
          register_module("positions", std::make_shared<Embedding>(config.max_length, config.dim));
      break;
    case Positions::kSinusoidConcatenated:
      sinusoids_ = register_buffer("positions", interleaved_sinusoids(config.max_length, width));
      break;
    case Positions::kSinusoidAdded:
    case Positions::kSinusoidDescending:
      sinusoids_ = register_buffer("positions", halved_sinusoids(config.max_length, config.dim));
      break;
  }
  const BlockOptions options = block_options(config);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    blocks_.push_back(register_module("block_" + std::to_string(layer),
                                      std::make_shared<TransformerBlock>(options, layer)));
  }
  if (config.final_norm) {
    final_norm_ = register_module("final_norm", std::make_shared<LayerNorm>(config.dim));
  }
}

Encoder::Place Encoder::place_of(const Tensor& tokens, const Pass& pass) const {
  TORCH_CHECK_VALUE(tokens.dim() == 2, "model: tokens are ", tokens.sizes(),
                    "; wanted [batch, length]");
  const int64_t count = tokens.size(1), begin = pass.memory ? pass.memory->tokens : 0;
  TORCH_CHECK_VALUE(begin + count <= config_.max_length || config_.positions == Positions::kNone,
                    "model: the sequence has ", begin + count, " tokens; max_length is ",
                    config_.max_length, "; cut the sequence or raise max_length");
  return {.begin = begin, .count = count};
}

Tensor Encoder::codes_of(const Place& place) const {
  const auto rows = [&](const Tensor& table) { return table.narrow(0, place.begin, place.count); };
  switch (config_.positions) {
    case Positions::kNone:
      return Tensor();
    case Positions::kLearned:
      return rows(learned_positions_->weight);
    case Positions::kSinusoidConcatenated:
    case Positions::kSinusoidAdded:
      return rows(sinusoids_);
    case Positions::kSinusoidDescending:
      // Counted down from the end of a whole window, however much of it is there: what a token
      // gets must not depend on those that follow.
      return sinusoids_.narrow(0, config_.max_length - place.begin - place.count, place.count)
          .flip(0);
  }
  TORCH_INTERNAL_ASSERT(false, "a kind of positions without a case");
}

Tensor Encoder::embed(const Tensor& tokens, const Pass& pass) const {
  const Tensor codes = codes_of(place_of(tokens, pass));
  EmbeddingUse use{.site = embedding_site_};
  if (config_.scale_embedding) use.scale = std::sqrt(static_cast<double>(table().size(1)));
  if (is_concatenated(config_)) {
    const Tensor x = embedding_->forward(tokens, {.scale = use.scale}, pass);
    return dropout(at::cat({x, codes.expand({x.size(0), -1, -1})}, 2), embedding_site_, pass);
  }
  use.positions = codes;
  return embedding_->forward(tokens, use, pass);
}

Tensor Encoder::forward(const Tensor& tokens, const std::optional<Tensor>& token_mask,
                        const Pass& pass) const {
  Tensor x = embed(tokens, pass);
  TwoUses uses = {x, x};
  for (const auto& block : blocks_) uses = block->forward_twice(uses, token_mask, pass);
  if (pass.memory) pass.memory->tokens += tokens.size(1);
  x = uses.first;
  if (final_norm_) x = final_norm_->forward(x);
  return dropout(x, final_site_, pass);
}

}  // namespace fmmformer
