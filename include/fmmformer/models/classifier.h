// SPDX-License-Identifier: Apache-2.0
// What classifiers of one text and of two have in common.
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

/// Encoder, mean over tokens, head.
class Classifier : public Model {
 protected:
  /// `vectors`: how many of width dim the head gets.
  Classifier(const ModelConfig& config, int64_t vectors);

  Pooling pooling_;
  std::shared_ptr<Encoder> encoder_;
  std::shared_ptr<ClassifierHead> head_;
};

}  // namespace fmmformer
