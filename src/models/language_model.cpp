// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/models/language_model.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace fmmformer {

using at::Tensor;

LanguageModel::LanguageModel(const ModelConfig& config) : config_(config) {
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

std::shared_ptr<ClusterBounds> LanguageModel::cluster_bounds() const {
  return adaptive_ ? ClusterBounds::of(adaptive_, encoder_->table()) : nullptr;
}

TokenScores LanguageModel::next_token(const Tensor& tokens, DecodingMemory& memory,
                                      const std::shared_ptr<ClusterBounds>& bounds) const {
  at::NoGradGuard no_gradients;
  const Pass pass{.memory = &memory};
  const Tensor hidden = encoder_->forward(tokens, std::nullopt, pass)[0].slice(0, -1);  // [1, dim]
  if (linear_) {
    return {{{.size = config_.vocabulary}}, [this, hidden](size_t) {
              return at::log_softmax(linear_->forward(hidden)[0].to(at::kFloat), 0);
            }};
  }
  const auto head = adaptive_->head_log_probabilities(hidden, encoder_->table());
  const Tensor log_mass = head.clusters[0].to(at::kCPU, at::kDouble);
  std::vector<TokenScores::Part> parts = {{.size = adaptive_->cluster_begin(0)}};
  double in_clusters = 0;
  for (int64_t i = 0; i < adaptive_->clusters(); ++i) {
    const double mass = log_mass[i].item<double>();
    parts.push_back({adaptive_->cluster_begin(i), adaptive_->cluster_size(i), mass});
    in_clusters += std::exp(mass);
  }
  parts[0].log_mass = std::log(std::max(1 - in_clusters, std::numeric_limits<double>::min()));
  const auto compute = [this, hidden, head](size_t part) {
    if (part == 0) return head.words[0];
    const auto cluster = static_cast<int64_t>(part) - 1;
    return adaptive_->cluster_log_probabilities(cluster, hidden, encoder_->table())[0] +
           head.clusters[0][cluster];
  };
  if (!bounds) return {std::move(parts), compute};
  std::vector<double> masses;
  for (size_t part = 1; part < parts.size(); ++part) masses.push_back(parts[part].log_mass);
  const auto bound = [bounds, token = std::make_shared<ClusterBounds::Token>(*bounds, hidden),
                      masses](size_t part, TokenScores::Sharpness sharpness) {
    if (part == 0) return TokenScores::Bounds{};
    const auto cluster = static_cast<int64_t>(part) - 1;
    // Words with more than this times the mean probability of their cluster. In one as uneven as a
    // trained model's, that is a row in fifteen and 97 % of the mass; a row in five and 99.5 %.
    constexpr double kSharp = 0.5, kSharpest = 0.05;
    if (sharpness == TokenScores::Sharpness::kSharp) token->sharpen(cluster, kSharp);
    if (sharpness == TokenScores::Sharpness::kSharpest) token->sharpen(cluster, kSharpest);
    auto found = token->log_probabilities(cluster, masses[part - 1]);
    return TokenScores::Bounds{std::move(found.low), std::move(found.high)};
  };
  return {std::move(parts), compute, bound};
}

}  // namespace fmmformer
