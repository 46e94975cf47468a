// SPDX-License-Identifier: Apache-2.0
#include "train/scoring.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <stdexcept>
#include <utility>

namespace fmmformer::train {

const Metric& metric_for(tasks::TaskName task, const ModelConfig& model) {
  const bool without_logits =
      model.kind == ModelKind::kLanguageModel && model.output == Output::kAdaptiveSoftmax;
  return task == tasks::TaskName::kWikitext || without_logits ? kPerplexity : kAccuracy;
}

ScoreTensors score_batch(const Model& model, const BatchTensors& batch, const Pass& pass) {
  at::Tensor logits;
  at::Tensor losses = model.losses(batch.inputs, batch.targets, pass, &logits).to(at::kFloat);
  if (batch.target_mask) losses = losses.masked_fill(batch.target_mask->logical_not(), 0);
  ScoreTensors score{.loss_sum = losses.sum()};
  if (!logits.defined()) {
    score.correct = at::zeros({}, losses.options());
    return score;
  }
  at::NoGradGuard no_gradient;
  at::Tensor right = logits.argmax(-1) == batch.targets;
  if (batch.target_mask) right = right.logical_and(*batch.target_mask);
  score.correct = right.sum().to(at::kFloat);
  return score;
}

int64_t evaluation_batches(const tasks::Task& task, const EvaluationPlan& plan) {
  const bool sliding = plan.order == tasks::Order::kSliding;
  const int64_t examples = sliding ? task.sliding_examples(plan.split) : task.examples(plan.split);
  if (sliding && examples == 0) {
    throw std::invalid_argument(
        "evaluate: this task has no sliding windows; they are for texts to predict");
  }
  if (examples == 0 && plan.batches == 0) {
    throw std::invalid_argument(
        "evaluate: this task makes examples without end; set train.evaluation_batches to how many "
        "batches an evaluation has");
  }
  const int64_t whole = (examples + plan.batch_size - 1) / plan.batch_size;
  if (examples == 0) return plan.batches;
  return plan.batches == 0 ? whole : std::min(plan.batches, whole);
}

namespace {

BatchWork scoring_work(const Model& model) {
  return {.run = [&model](const StepInputs& inputs) {
    at::NoGradGuard no_gradient;
    const ScoreTensors score = score_batch(model, inputs.parts[0], Pass{});
    return at::stack({score.loss_sum, score.correct});
  }};
}

}  // namespace

Evaluator::Evaluator(const Model& model, const tasks::Task& task, RunnerOptions options)
    : task_(task) {
  options.noticed = {};  // training has told of it already
  options.clock = nullptr;
  runner_ = make_runner(scoring_work(model), options);
}

Evaluator::Ahead Evaluator::batches_of(const EvaluationPlan& plan) const {
  const auto make = [&task = task_, plan](int64_t index) {
    return task.batch({.split = plan.split,
                       .order = plan.order,
                       .round = plan.round,
                       .index = index,
                       .size = plan.batch_size});
  };
  const PrefetchOptions options{.threads = 1, .end = evaluation_batches(task_, plan)};
  return {plan, std::make_unique<Prefetcher<Batch>>(make, options)};
}

Score Evaluator::score(const EvaluationPlan& plan, const EvaluationProgress& progress) {
  const int64_t batches = evaluation_batches(task_, plan);
  Ahead ahead = next_ && next_->plan.has_batches_of(plan) ? *std::exchange(next_, std::nullopt)
                                                          : batches_of(plan);
  std::vector<at::Tensor> scores;  // read at the end: a GPU need not wait between batches
  Score total;
  for (int64_t index = 0; index < batches; ++index) {
    const StepBatches batch = {ahead.batches->next()};
    scores.push_back(runner_->run(batch, {.dropout_seeds = {0}}));
    total.count += static_cast<double>(batch[0].counted());
    if (progress) progress(index + 1, batches);
  }
  // A task without end has other examples every time.
  if (plan.comes_again && task_.examples(plan.split) > 0) next_ = batches_of(plan);
  if (scores.empty()) return total;
  const at::Tensor all = at::stack(scores).to(at::kCPU, at::kDouble);
  const double* values = all.const_data_ptr<double>();
  for (int64_t index = 0; index < batches; ++index) {
    total += {.loss = values[2 * index], .correct = values[2 * index + 1], .count = 0};
  }
  return total;
}

}  // namespace fmmformer::train
