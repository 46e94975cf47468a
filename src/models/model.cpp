// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/models/model.h"

#include <ATen/ATen.h>

#include "fmmformer/models/language_model.h"
#include "fmmformer/models/pair_classifier.h"
#include "fmmformer/models/sequence_classifier.h"
#include "fmmformer/nn/initialise.h"

namespace fmmformer {

using at::Tensor;

Tensor Model::losses(const ModelInputs& inputs, const Tensor& targets, const Pass& pass,
                     Tensor* logits) const {
  const Tensor out = forward(inputs, pass);
  if (logits) *logits = out.detach();
  const Tensor flat = out.flatten(0, -2);
  // In fp32 at least: a sum of many exponentials.
  const auto type = out.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return at::cross_entropy_loss(flat.to(type), targets.flatten(), {}, at::Reduction::None)
      .view(targets.sizes());
}

int64_t Model::parameter_count() const {
  int64_t count = 0;
  for (const Tensor& parameter : parameters()) count += parameter.numel();
  return count;
}

std::shared_ptr<Model> make_model(const ModelConfig& config, uint64_t seed) {
  const auto make = [&]() -> std::shared_ptr<Model> {
    switch (config.kind) {
      case ModelKind::kLanguageModel:
        return std::make_shared<LanguageModel>(config);
      case ModelKind::kSequenceClassifier:
        return std::make_shared<SequenceClassifier>(config);
      case ModelKind::kPairClassifier:
        return std::make_shared<PairClassifier>(config);
    }
    TORCH_INTERNAL_ASSERT(false, "a kind of model without a case");
  };
  std::shared_ptr<Model> model = make();
  initialise(*model, config.initialisation, config.initial_std, seed);
  return model;
}

}  // namespace fmmformer
