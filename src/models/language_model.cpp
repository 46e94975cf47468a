// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/models/language_model.h"

#include <ATen/ATen.h>

namespace fmmformer {

using at::Tensor;

LanguageModel::LanguageModel(const ModelConfig& config) {
  encoder_ = register_module("encoder", std::make_shared<Encoder>(config));
  if (config.output == Output::kLinear) {
    linear_ = register_module("output", std::make_shared<Linear>(config.dim, config.vocabulary));
    return;
  }
  TORCH_CHECK_VALUE(config.positions != Positions::kSinusoidConcatenated,
                    "model: an adaptive softmax is tied to the embedding, which must be as wide as "
                    "the model; sinusoid_concatenated positions make it half as wide");
  adaptive_ = register_module(
      "output", std::make_shared<AdaptiveSoftmax>(config.vocabulary, config.dim, config.cutoffs));
}

Tensor LanguageModel::forward(const ModelInputs& inputs, const Pass& pass) const {
  const Tensor hidden = encoder_->forward(inputs.tokens, inputs.token_mask, pass);
  return linear_ ? linear_->forward(hidden)
                 : adaptive_->log_probabilities(hidden, encoder_->table());
}

Tensor LanguageModel::losses(const ModelInputs& inputs, const Tensor& targets, const Pass& pass,
                             Tensor* logits) const {
  if (linear_) return Model::losses(inputs, targets, pass, logits);
  const Tensor hidden = encoder_->forward(inputs.tokens, inputs.token_mask, pass);
  return adaptive_
      ->losses(hidden.flatten(0, 1), targets.flatten(), encoder_->table(),
               inputs.cluster_capacities)
      .view(targets.sizes());
}

}  // namespace fmmformer
