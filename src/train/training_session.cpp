// SPDX-License-Identifier: Apache-2.0
#include "train/training_session.h"

#include <ATen/ATen.h>

#include <cmath>

#include "fmmformer/core/random.h"
#include "tasks/wikitext.h"
#include "train/gpu_arithmetic.h"
#include "train/model_files.h"
#include "train/model_pictures.h"
#include "train/process_memory.h"
#include "train/run_vocabulary.h"
#include "train/scoring.h"
#include "train/tensor_file.h"

namespace fmmformer::train {

TrainingSession::TrainingSession(SessionRun run, const TrainerOptions& options,
                                 TrainListener& listener)
    : experiment_(std::move(run.experiment)),
      folder_(std::move(run.folder)),
      device_(options.device),
      listener_(listener),
      checkpoints_(folder_.checkpoints(), StoreAccess::kWrite, experiment_.train.keep_checkpoints),
      metric_(metric_for(experiment_.task.name, experiment_.model)) {
  stop_at_ = options.stop_at;
  if (device_.is_cuda()) set_gpu_arithmetic(experiment_.train.tf32);
  forget_peak_bytes(device_);
  open_data(run.resumed);
  const auto seed = static_cast<uint64_t>(experiment_.train.seed);
  model_ = make_model(experiment_.model, derive_seed(seed, "model"));
  if (!options.init_from.empty()) {
    if (const std::string note = load_weights(options.init_from, *model_); !note.empty())
      listener_.noticed(note);
  }
  place_model(*model_, device_, experiment_.train.precision);
  parameters_ = parameters_of(*model_);
  optimizer_.emplace(parameters_, experiment_.optimizer);
  state_.device = device_.str();
  if (run.resumed) restore();
  seconds_before_ = state_.seconds;
  recorder_.emplace(folder_, RunDescription{experiment_, metric_, options.identity},
                    run.resumed ? std::optional(state_.step) : std::nullopt);
  recorder_->set("parameters", model_->parameter_count());
  if (const auto* text = dynamic_cast<const tasks::WikitextTask*>(task_.get()))
    recorder_->set("vocabulary", vocabulary_record(text->words()));
  if (nothing_left_) return;
  folder_.write_config(experiment_toml(experiment_));
  recorder_->write(RunStatus::kRunning);
  // Weights from elsewhere do not follow from the seed: a run cut before its first checkpoint would
  // lose them.
  if (!run.resumed && !options.init_from.empty()) save_checkpoint(/*best=*/false);
  stream_ = make_work_stream(device_);
  const RunnerOptions how{.device = device_,
                          .cuda_graph = experiment_.train.cuda_graph,
                          .cutoffs = cutoffs_of(experiment_.model),
                          .noticed =
                              [this](const std::string& what) {
                                listener_.noticed(what);
                                graph_notes_.push_back(what);
                              },
                          .clock = &clock_};
  runner_ = make_runner(training_work({*model_, *optimizer_, clock_}), how);
  evaluator_.emplace(*model_, *task_, how);
  batches_.emplace([this](int64_t step) { return batches_of(step); },
                   PrefetchOptions{.threads = experiment_.train.prefetch_threads,
                                   .first = state_.step,
                                   .end = experiment_.train.steps});
}

void TrainingSession::open_data(bool resumed) {
  if (resumed) check_vocabulary(folder_, experiment_);
  const auto seed = static_cast<uint64_t>(experiment_.train.seed);
  task_ = tasks::make_task(experiment_.task, derive_seed(seed, "task"));
  // Data that is missing stops a run here rather than at its first evaluation, or at its end.
  task_->examples(tasks::Split::kTrain), task_->examples(tasks::Split::kValid);
  if (!experiment_.train.test) return;
  scores_test_ = task_->has(tasks::Split::kTest);
  if (scores_test_) {
    task_->examples(tasks::Split::kTest);
  } else {
    listener_.noticed("the data has no test split: the model is scored on valid alone");
  }
}

void TrainingSession::restore() {
  const GoodCheckpoint good = checkpoints_.latest_good();
  for (const SkippedCheckpoint& skipped : good.skipped) {
    listener_.noticed("checkpoint of step " + std::to_string(skipped.step) +
                      " is damaged and left out: " + skipped.reason);
  }
  if (!good.step) {
    if (!good.skipped.empty()) {
      throw std::runtime_error("no checkpoint of '" + folder_.folder().string() +
                               "' is whole; restore one from a copy, or begin a new run with "
                               "another --out");
    }
    listener_.noticed("no checkpoint yet: the run begins at step 0");
    return;
  }
  if (experiment_.train.steps < *good.step) {
    throw ConfigError("train.steps is " + std::to_string(experiment_.train.steps) +
                      ", the run has done " + std::to_string(*good.step) + " already");
  }
  nothing_left_ = experiment_.train.steps == *good.step &&
                  folder_.read_record().value("status", "") == enum_name(RunStatus::kFinished);
  const LoadedCheckpoint checkpoint = checkpoints_.load(*good.step);
  state_ = RunState::from_json(checkpoint.state);
  copy_tensors(tensors_of(checkpoint.model), parameters_, "the checkpoint's model");
  optimizer_->load_state(tensors_of(checkpoint.optimizer));
  checkpoints_.discard_after(*good.step);
  saved_step_ = *good.step;
  if (state_.device != device_.str()) {
    listener_.noticed("the run was made on " + state_.device + " and goes on on " + device_.str() +
                      ": results will not be the same bits");
    state_.device = device_.str();
  }
}

StepBatches TrainingSession::batches_of(int64_t step) const {
  const TrainConfig& train = experiment_.train;
  StepBatches parts;
  for (int64_t part = 0; part < train.accumulate; ++part) {
    parts.push_back(task_->batch({.split = tasks::Split::kTrain,
                                  .order = tasks::Order::kShuffled,
                                  .index = step * train.accumulate + part,
                                  .size = train.batch_size / train.accumulate}));
  }
  return parts;
}

StepNumbers TrainingSession::numbers_of(double counted) {
  const TrainConfig& train = experiment_.train;
  const ScheduledUpdate update = scheduled_update(experiment_.schedule, state_.step, train.steps);
  learning_rate_ = update.learning_rate;
  StepNumbers numbers{.counted = static_cast<float>(std::max(counted, 1.0)),
                      .update = optimizer_->count_step(update.learning_rate, update.beta1)};
  // Parts of one step must not share their dropout.
  for (int64_t part = 0; part < train.accumulate; ++part) {
    numbers.dropout_seeds.push_back(dropout_seed_value(static_cast<uint64_t>(train.seed),
                                                       state_.step * train.accumulate + part));
  }
  return numbers;
}

void TrainingSession::train_step() {
  clock_.begin(StepPart::kData);
  const StepBatches parts = batches_->next();
  double counted = 0;
  int64_t tokens = 0;
  for (const Batch& part : parts) {
    counted += static_cast<double>(part.counted());
    tokens += part.tokens_read();
  }
  PendingStep done{.step = state_.step, .counted = counted};
  done.score = runner_->run(parts, numbers_of(counted));
  ++state_.step;
  clock_.count_step(tokens);
  clock_.begin(StepPart::kLog);
  pending_.push_back(std::move(done));
}

bool TrainingSession::collect_losses() {
  if (pending_.empty()) return true;
  std::vector<at::Tensor> scores;
  for (const PendingStep& one : pending_) scores.push_back(one.score);
  const at::Tensor all = at::stack(scores).to(at::kCPU, at::kDouble);  // waits for the device once
  const double* values = all.const_data_ptr<double>();
  for (const PendingStep& one : pending_) {
    const double loss = *values++, correct = *values++;
    if (!std::isfinite(loss)) {
      fail("the loss of step " + std::to_string(one.step + 1));
      return false;
    }
    state_.window += {.loss = loss, .correct = correct, .count = one.counted};
    last_loss_ = loss / std::max(one.counted, 1.0);
  }
  pending_.clear();
  return true;
}

void TrainingSession::fail(const std::string& what) {
  problem_ = what + " is not finite";
  const std::string bad = first_tensor_not_finite(parameters_);
  problem_ += bad.empty() ? "; weights and gradients still are, so it arose in that pass itself"
                          : "; first bad tensor: " + bad;
  const std::optional<int64_t> good = checkpoints_.latest();
  problem_ += good ? "; the checkpoint of step " + std::to_string(*good) + " is kept"
                   : "; there is no checkpoint yet";
  problem_ += ". A lower schedule.learning_rate or optimizer.clip_global may help";
}

bool TrainingSession::weights_are_finite() {
  at::NoGradGuard no_gradient;
  std::vector<at::Tensor> sums;
  for (const auto& [name, parameter] : parameters_) sums.push_back(parameter.sum(at::kFloat));
  return sums.empty() || at::isfinite(at::stack(sums)).all().item<bool>();
}

void TrainingSession::log_window() {
  const MetricReport report{.step = state_.step,
                            .split = tasks::Split::kTrain,
                            .loss = state_.window.mean_loss(),
                            .metric = metric_.value(state_.window),
                            .learning_rate = learning_rate_,
                            .tokens_per_second = clock_.tokens_per_second()};
  state_.window = {};
  recorder_->add(report);
  listener_.measured(report);
}

Score TrainingSession::score_split(const EvaluationPlan& plan) {
  return evaluator_->score(plan,
                           [&](int64_t done, int64_t all) { listener_.evaluating(done, all); });
}

void TrainingSession::evaluate_now() {
  clock_.end();
  const TrainConfig& train = experiment_.train;
  const EvaluationPlan plan{.split = tasks::Split::kValid,
                            .round = state_.step,  // fresh examples, whatever was evaluated before
                            .batches = train.evaluation_batches,
                            .batch_size = train.batch_size / train.accumulate,
                            .comes_again = state_.step < train.steps};
  const auto begin = StepClock::Clock::now();
  const Score score = score_split(plan);
  evaluation_clock_.add(StepClock::Clock::now() - begin, evaluation_batches(*task_, plan));
  const double metric = metric_.value(score);
  const bool best = !state_.best_metric || metric_.is_better(metric, *state_.best_metric);
  if (best) state_.best_metric = metric, state_.best_step = state_.step;
  const MetricReport report{.step = state_.step,
                            .split = tasks::Split::kValid,
                            .loss = score.mean_loss(),
                            .metric = metric,
                            .tokens_per_second = clock_.tokens_per_second(),
                            .is_best = best};
  recorder_->add(report);
  listener_.measured(report);
  if (best) save_checkpoint(/*best=*/true);
  recorder_->write(RunStatus::kRunning);
}

double TrainingSession::seconds_spent() const {
  return seconds_before_ +
         std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
}

void TrainingSession::save_checkpoint(bool best) {
  clock_.end();
  if (saved_step_ == state_.step && !best) return;
  state_.seconds = seconds_spent();
  const TensorViews model(parameters_), optimizer(optimizer_->save_state());
  checkpoints_.save(state_.step, {.model = model.views(),
                                  .optimizer = optimizer.views(),
                                  .state = state_.to_json(),
                                  .best = best});
  saved_step_ = state_.step;
  listener_.saved(state_.step, checkpoints_.path_of(state_.step).string());
}

void TrainingSession::write_result(RunStatus status) {
  nlohmann::ordered_json parts = nlohmann::ordered_json::object();
  for (size_t part = 0; part < kStepPartNames.size(); ++part) {
    const double share =
        clock_.total() > 0 ? clock_.seconds(static_cast<StepPart>(part)) / clock_.total() : 0.0;
    parts[std::string(kStepPartNames[part])] = share;
  }
  result_["steps"] = state_.step;
  result_["seconds"] = seconds_spent();
  if (clock_.steps() > 0) {
    result_["tokens_per_second"] = clock_.tokens_per_second();
    result_["seconds_per_step"] = clock_.seconds_per_step();
  }
  if (evaluation_clock_.batches() > 0) {
    result_["seconds_per_evaluation_batch"] = evaluation_clock_.seconds_per_batch();
  }
  result_["peak_bytes"] = peak_bytes(device_);
  result_["share_of_step"] = parts;
  if (runner_) result_["steps_run"] = runner_->how();
  if (!graph_notes_.empty()) result_["graph_notes"] = graph_notes_;
  if (state_.best_metric) {
    result_["best_metric"] = metric_.recorded(*state_.best_metric);
    result_["best_step"] = state_.best_step;
  }
  recorder_->set("result", result_);
  recorder_->write(status, problem_);
}

RunOutcome TrainingSession::outcome(RunStatus status) const {
  return {.status = status,
          .message = problem_,
          .signal = interrupt_.signal(),
          .folder = folder_.folder(),
          .step = state_.step,
          .metric = metric_,
          .best_metric = state_.best_metric.value_or(std::nan("")),
          .best_step = state_.best_step,
          .seconds = nothing_left_ ? seconds_before_ : seconds_spent()};
}

bool TrainingSession::take_best_weights() {
  if (state_.best_step == state_.step) return true;
  try {
    const LoadedCheckpoint best = checkpoints_.load(state_.best_step, CheckpointParts::kModel);
    copy_tensors(tensors_of(best.model), parameters_, "the best checkpoint's model");
    return true;
  } catch (const std::exception& problem) {
    listener_.noticed(std::string(problem.what()) + "; the last weights are used");
    return false;
  }
}

void TrainingSession::finish() {
  save_checkpoint(/*best=*/false);
  const bool best = take_best_weights();
  const int64_t step = best ? state_.best_step : state_.step;
  if (scores_test_) {
    const EvaluationPlan plan{
        .split = tasks::Split::kTest,
        .batches =
            task_->examples(tasks::Split::kTest) == 0 ? experiment_.train.evaluation_batches : 0,
        .batch_size = experiment_.train.batch_size / experiment_.train.accumulate};
    const Score score = score_split(plan);
    const MetricReport report{.step = step,
                              .split = tasks::Split::kTest,
                              .loss = score.mean_loss(),
                              .metric = metric_.value(score)};
    listener_.measured(report);
    result_["test_loss"] = report.loss, result_["test_metric"] = metric_.recorded(report.metric);
  }
  recorder_->set("pictures", {{"step", step}, {"weights", best ? "best" : "last"}});
  add_pictures(*model_, *task_, device_, *recorder_);
}

RunOutcome TrainingSession::run() {
  RunStatus status = RunStatus::kFinished;
  if (nothing_left_) {
    listener_.noticed("the run is finished; --set train.steps=N makes it longer");
  } else {
    status = train_to_the_end();
    write_result(status);
  }
  const RunOutcome ended = outcome(status);
  listener_.ended(ended);
  return ended;
}

bool TrainingSession::asked_to_stop() const {
  return interrupt_.requested() || (stop_at_ && std::chrono::steady_clock::now() >= *stop_at_);
}

RunStatus TrainingSession::train_to_the_end() {
  const TrainConfig& train = experiment_.train;
  listener_.started(model_->parameter_count(), state_.step, metric_);
  while (state_.step < train.steps) {
    train_step();
    const bool log_now = state_.step % train.log_every == 0;
    // Reading a loss from a GPU waits for it: there, only where it is to be shown.
    const bool stop_now = asked_to_stop();
    const bool save_now = state_.step % train.checkpoint_every == 0 || stop_now;
    const bool look_now = state_.step % train.evaluate_every == 0 || state_.step == train.steps;
    if (device_.is_cpu() || log_now || save_now || look_now) {
      if (!collect_losses()) return RunStatus::kFailed;
    }
    if (log_now) log_window();
    listener_.stepped({.step = state_.step,
                       .steps = train.steps,
                       .loss = last_loss_,
                       .tokens_per_second = clock_.tokens_per_second(),
                       .seconds_left = clock_.seconds_per_step() *
                                       static_cast<double>(train.steps - state_.step)});
    if ((save_now || look_now) && !weights_are_finite()) {
      fail("a weight after step " + std::to_string(state_.step));
      return RunStatus::kFailed;
    }
    if (look_now) evaluate_now();
    if (save_now) save_checkpoint(/*best=*/false);
    if (stop_now) return RunStatus::kInterrupted;
  }
  finish();
  return RunStatus::kFinished;
}

}  // namespace fmmformer::train
