// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "fmmformer/models/encoder.h"
#include "fmmformer/models/model.h"

namespace fmmformer {

/// The mean of x [B, N, dim] over real tokens (see Pooling) -> [B, dim].
at::Tensor pooled(const at::Tensor& x, const std::optional<at::Tensor>& token_mask,
                  Pooling pooling);

/// linear, ReLU, linear
class ClassifierHead : public torch::nn::Module {
 public:
  ClassifierHead(int64_t in, int64_t hidden, int64_t classes);
  at::Tensor forward(const at::Tensor& x) const;

 private:
  std::shared_ptr<Linear> hidden_, output_;
};

/// One class for a sequence: encoder, mean over tokens, head.
class SequenceClassifier : public Model {
 public:
  explicit SequenceClassifier(const ModelConfig& config);
  at::Tensor forward(const ModelInputs& inputs, const Pass& pass) const override;

 private:
  Pooling pooling_;
  std::shared_ptr<Encoder> encoder_;
  std::shared_ptr<ClassifierHead> head_;
};

}  // namespace fmmformer
