// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "fmmformer/models/encoder.h"
#include "fmmformer/models/model.h"
#include "fmmformer/models/token_scores.h"
#include "fmmformer/nn/adaptive_softmax.h"
#include "fmmformer/nn/cluster_bounds.h"
#include "fmmformer/nn/decoding_memory.h"

namespace fmmformer {

/// The next token at every position: encoder and a linear map, or an adaptive softmax tied to the
/// embedding.
class LanguageModel : public Model {
 public:
  explicit LanguageModel(const ModelConfig& config);
  at::Tensor forward(const ModelInputs& inputs, const Pass& pass) const override;
  at::Tensor losses(const ModelInputs& inputs, const at::Tensor& targets, const Pass& pass,
                    at::Tensor* logits = nullptr) const override;

  /// Goes on with the text that `memory` holds by tokens [1, N] (N is 1 unless it is empty), and
  /// returns what may come after the last of them. What is returned must not outlive the model.
  /// Without gradients. models/decoding_session.h does this for a text of any length. `bounds`:
  /// cluster_bounds(), or none; kept by the caller from token to token.
  TokenScores next_token(const at::Tensor& tokens, DecodingMemory& memory,
                         const std::shared_ptr<ClusterBounds>& bounds = nullptr) const;
  /// Of weights that stay as they are meanwhile; none without an adaptive softmax, or where there
  /// is no kernel.
  std::shared_ptr<ClusterBounds> cluster_bounds() const;

  const ModelConfig& config() const { return config_; }

 private:
  ModelConfig config_;
  std::shared_ptr<Encoder> encoder_;
  std::shared_ptr<Linear> linear_;             // Output::kLinear
  std::shared_ptr<AdaptiveSoftmax> adaptive_;  // Output::kAdaptiveSoftmax
};

}  // namespace fmmformer
