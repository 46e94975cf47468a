// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fmmformer/models/classifier.h"

namespace fmmformer {

/// One class for two sequences of equal length: both go through the same encoder, without seeing
/// each other; the head gets [a, b, a * b, a - b] of their means a and b.
class PairClassifier : public Classifier {
 public:
  explicit PairClassifier(const ModelConfig& config) : Classifier(config, 4) {}
  at::Tensor forward(const ModelInputs& inputs, const Pass& pass) const override;
};

}  // namespace fmmformer
