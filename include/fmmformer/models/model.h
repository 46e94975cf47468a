// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "fmmformer/models/model_config.h"
#include "fmmformer/nn/pass.h"

namespace fmmformer {

/// A Batch (core/batch.h) as tensors on the model's device.
struct ModelInputs {
  at::Tensor tokens;                     // int64 [B, N]
  std::optional<at::Tensor> token_mask;  // bool [B, N], true = a real token; none: all are
  at::Tensor other_tokens;               // of a pair: the second text
  std::optional<at::Tensor> other_token_mask;
  // Host numbers, for an adaptive softmax: rows that each cluster's targets get (its losses()).
  std::vector<int64_t> cluster_capacities = {};
};

/// Any of the models. A model is a function of its parameters, inputs and pass: it has no mode, no
/// generator and no state.
class Model : public torch::nn::Module {
 public:
  /// Logits: [B, classes] of a classifier, [B, N, vocabulary] of a language model (whose adaptive
  /// softmax gives log-probabilities: for few tokens only).
  virtual at::Tensor forward(const ModelInputs& inputs, const Pass& pass) const = 0;

  /// The loss of every target, -log p: targets int64 [B] or [B, N] -> the same shape. Unlike
  /// forward, this never holds more than it must of a large vocabulary. `logits`, when given,
  /// receives what forward returns, where that comes for free (nothing for an adaptive softmax).
  virtual at::Tensor losses(const ModelInputs& inputs, const at::Tensor& targets, const Pass& pass,
                            at::Tensor* logits = nullptr) const;

  int64_t parameter_count() const;
};

/// A model with its parameters drawn from the seed (nn/initialise.h), on the CPU, in fp32. Throws
/// std::invalid_argument (ValueError of torch included) when the config contradicts itself.
std::shared_ptr<Model> make_model(const ModelConfig& config, uint64_t seed);

}  // namespace fmmformer
