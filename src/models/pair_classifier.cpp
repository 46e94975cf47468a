// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/models/pair_classifier.h"

#include <ATen/ATen.h>

namespace fmmformer {

using at::Tensor;

Tensor PairClassifier::forward(const ModelInputs& inputs, const Pass& pass) const {
  TORCH_CHECK_VALUE(
      inputs.other_tokens.defined() && inputs.other_tokens.sizes() == inputs.tokens.sizes(),
      "pair classifier: wanted two texts of equal shape in tokens and other_tokens");
  TORCH_CHECK_VALUE(inputs.token_mask.has_value() == inputs.other_token_mask.has_value(),
                    "pair classifier: both texts have a mask, or none has");
  // One pass over both: they share the weights, and a batch entry sees no other.
  std::optional<Tensor> mask;
  if (inputs.token_mask) mask = at::cat({*inputs.token_mask, *inputs.other_token_mask});
  const Tensor x = encoder_->forward(at::cat({inputs.tokens, inputs.other_tokens}), mask, pass);
  const auto means = pooled(x, mask, pooling_).chunk(2);
  const Tensor &a = means[0], &b = means[1];
  return head_->forward(at::cat({a, b, a * b, a - b}, 1));
}

}  // namespace fmmformer
