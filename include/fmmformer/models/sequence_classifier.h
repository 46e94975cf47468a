// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fmmformer/models/classifier.h"

namespace fmmformer {

/// One class for a sequence: encoder, mean over tokens, head.
class SequenceClassifier : public Classifier {
 public:
  explicit SequenceClassifier(const ModelConfig& config) : Classifier(config, 1) {}
  at::Tensor forward(const ModelInputs& inputs, const Pass& pass) const override;
};

}  // namespace fmmformer
