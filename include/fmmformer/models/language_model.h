// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "fmmformer/models/encoder.h"
#include "fmmformer/models/model.h"
#include "fmmformer/nn/adaptive_softmax.h"

namespace fmmformer {

/// The next token at every position: encoder and a linear map, or an adaptive softmax tied to the
/// embedding.
class LanguageModel : public Model {
 public:
  explicit LanguageModel(const ModelConfig& config);
  at::Tensor forward(const ModelInputs& inputs, const Pass& pass) const override;
  at::Tensor losses(const ModelInputs& inputs, const at::Tensor& targets, const Pass& pass,
                    at::Tensor* logits = nullptr) const override;

 private:
  std::shared_ptr<Encoder> encoder_;
  std::shared_ptr<Linear> linear_;             // Output::kLinear
  std::shared_ptr<AdaptiveSoftmax> adaptive_;  // Output::kAdaptiveSoftmax
};

}  // namespace fmmformer
