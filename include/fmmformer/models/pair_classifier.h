// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "fmmformer/models/sequence_classifier.h"

namespace fmmformer {

/// One class for two sequences of equal length: both go through the same encoder, without seeing
/// each other; the head gets [a, b, a * b, a - b] of their means a and b.
class PairClassifier : public Model {
 public:
  explicit PairClassifier(const ModelConfig& config);
  at::Tensor forward(const ModelInputs& inputs, const Pass& pass) const override;

 private:
  Pooling pooling_;
  std::shared_ptr<Encoder> encoder_;
  std::shared_ptr<ClassifierHead> head_;
};

}  // namespace fmmformer
