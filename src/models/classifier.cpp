// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/models/classifier.h"

#include <ATen/ATen.h>

namespace fmmformer {

using at::Tensor;

Tensor pooled(const Tensor& x, const std::optional<Tensor>& token_mask, Pooling pooling) {
  if (!token_mask) return x.mean(1);
  // As a product: no masked copy of x is made.
  const Tensor sum = at::bmm(token_mask->unsqueeze(1).to(x.scalar_type()), x).squeeze(1);
  if (pooling == Pooling::kPaddedLength) return sum / static_cast<double>(x.size(1));
  return sum / token_mask->sum(1, /*keepdim=*/true).clamp_min(1);
}

ClassifierHead::ClassifierHead(int64_t in, int64_t hidden, int64_t classes) {
  hidden_ = register_module("hidden", std::make_shared<Linear>(in, hidden));
  output_ = register_module("output", std::make_shared<Linear>(hidden, classes));
}

Tensor ClassifierHead::forward(const Tensor& x) const {
  return output_->forward(hidden_->forward(x).relu());
}

Classifier::Classifier(const ModelConfig& config, int64_t vectors) : pooling_(config.pooling) {
  encoder_ = register_module("encoder", std::make_shared<Encoder>(config));
  head_ = register_module("head", std::make_shared<ClassifierHead>(
                                      vectors * config.dim, config.head_hidden, config.classes));
}

}  // namespace fmmformer
