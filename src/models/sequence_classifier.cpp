// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/models/sequence_classifier.h"

#include <ATen/ATen.h>

namespace fmmformer {

using at::Tensor;

Tensor SequenceClassifier::forward(const ModelInputs& inputs, const Pass& pass) const {
  const Tensor x = encoder_->forward(inputs.tokens, inputs.token_mask, pass);
  return head_->forward(pooled(x, inputs.token_mask, pooling_));
}

}  // namespace fmmformer
