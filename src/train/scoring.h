// SPDX-License-Identifier: Apache-2.0
// Loss and accuracy of a model on batches.
#pragma once

#include <functional>

#include "fmmformer/models/batch_tensors.h"
#include "fmmformer/models/model.h"
#include "tasks/task.h"

namespace fmmformer::train {

/// Sums over what counts, in double: adding and dividing them is exact enough for any number of
/// batches.
struct Score {
  double loss = 0;     // sum of -log p
  double correct = 0;  // right answers; not counted for a model without logits
  double count = 0;

  Score& operator+=(const Score& other);
  double mean_loss() const { return count > 0 ? loss / count : 0; }
  double accuracy() const { return count > 0 ? 100 * correct / count : 0; }
};

/// The same as tensors on the model's device, so that nothing waits for it.
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
