// SPDX-License-Identifier: Apache-2.0
// Loss and accuracy of a model on batches.
#pragma once

#include <functional>

#include "fmmformer/models/batch_tensors.h"
#include "fmmformer/models/model.h"
#include "tasks/task.h"
#include "train/metric.h"

namespace fmmformer::train {

/// How models of a kind are compared: by accuracy, or by perplexity where there are no logits to
/// count right answers in.
const Metric& metric_for(const ModelConfig& model);

/// A Score as tensors on the model's device, so that nothing waits for it.
struct ScoreTensors {
  at::Tensor loss_sum;  // fp32 scalar, differentiable
  at::Tensor correct;   // fp32 scalar
};
ScoreTensors score_batch(const Model& model, const BatchTensors& batch, const Pass& pass);

struct EvaluationPlan {
  tasks::Split split = tasks::Split::kValid;
  int64_t round = 0;
  int64_t batches = 0;  // 0: the whole split
  int64_t batch_size = 1;
};

/// Called after each batch with (done, all).
using EvaluationProgress = std::function<void(int64_t, int64_t)>;

/// Without gradients, without dropout. Throws std::invalid_argument for a whole split of a task
/// that has no end.
Score evaluate(const Model& model, const tasks::Task& task, const EvaluationPlan& plan,
               const at::Device& device, const EvaluationProgress& progress = {});

/// How many batches that is.
int64_t evaluation_batches(const tasks::Task& task, const EvaluationPlan& plan);

}  // namespace fmmformer::train
