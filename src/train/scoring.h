// SPDX-License-Identifier: Apache-2.0
// Loss and accuracy of a model on batches.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "fmmformer/models/batch_tensors.h"
#include "fmmformer/models/model.h"
#include "tasks/task.h"
#include "train/batch_runner.h"
#include "train/metric.h"
#include "train/prefetcher.h"

namespace fmmformer::train {

/// How models are compared: texts to predict by perplexity, all else by accuracy, unless there are
/// no logits to count right answers in.
const Metric& metric_for(tasks::TaskName task, const ModelConfig& model);

/// A Score as tensors on the model's device, so that nothing waits for it.
struct ScoreTensors {
  at::Tensor loss_sum;  // fp32 scalar, differentiable
  at::Tensor correct;   // fp32 scalar
};
ScoreTensors score_batch(const Model& model, const BatchTensors& batch, const Pass& pass);

struct EvaluationPlan {
  tasks::Split split = tasks::Split::kValid;
  tasks::Order order = tasks::Order::kStored;  // or kSliding, for a task that has it
  int64_t round = 0;
  int64_t batches = 0;  // 0: the whole split
  int64_t batch_size = 1;
  bool comes_again = false;  // the same examples: their first batches are made ahead

  /// Whether both have the same batches, of a split that has an end: `round` changes none there.
  bool has_batches_of(const EvaluationPlan& other) const {
    return split == other.split && order == other.order && batches == other.batches &&
           batch_size == other.batch_size;
  }
};

/// How many batches that is. Throws std::invalid_argument for a whole split of a task that has no
/// end, and for a sliding order where the task has none.
int64_t evaluation_batches(const tasks::Task& task, const EvaluationPlan& plan);

/// Called after each batch with (done, all).
using EvaluationProgress = std::function<void(int64_t, int64_t)>;

/// Scores a model again and again: without gradients, without dropout. Batches are made by a
/// thread ahead of their use, the first ones of a plan that comes again right after the last; on a
/// GPU a graph holds the pass from the fourth batch on.
class Evaluator {
 public:
  /// Model and task must outlive it; options.device is the model's.
  Evaluator(const Model& model, const tasks::Task& task, RunnerOptions options);

  Score score(const EvaluationPlan& plan, const EvaluationProgress& progress = {});

 private:
  struct Ahead {
    EvaluationPlan plan;
    std::unique_ptr<Prefetcher<Batch>> batches;
  };
  Ahead batches_of(const EvaluationPlan& plan) const;

  const tasks::Task& task_;
  std::unique_ptr<BatchRunner> runner_;
  std::optional<Ahead> next_;  // of the next evaluation
};

}  // namespace fmmformer::train
