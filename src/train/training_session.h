// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fmmformer/models/model.h"
#include "tasks/task.h"
#include "train/checkpoint_store.h"
#include "train/interrupt.h"
#include "train/optimizer.h"
#include "train/prefetcher.h"
#include "train/run_folder.h"
#include "train/run_state.h"
#include "train/scoring.h"
#include "train/step_clock.h"
#include "train/trainer.h"
#include "train/training_step.h"

namespace fmmformer::train {

/// What is trained, and where.
struct SessionRun {
  ExperimentConfig experiment;
  RunFolder folder;
  bool resumed = false;  // the folder holds a run already, to be gone on with
};

/// One sitting of a run: everything that lives while it trains. trainer.h is the way in.
class TrainingSession {
 public:
  TrainingSession(SessionRun run, const TrainerOptions& options, TrainListener& listener);

  RunOutcome run();

 private:
  // A step whose loss may still be on its way from the device.
  struct PendingStep {
    int64_t step;
    at::Tensor score;  // as training_step() returns it
    double counted;
  };

  /// Opens the splits that the run needs, and compares the vocabulary of one that goes on. Where
  /// there is no test split, the listener is told that the model is not scored on it.
  void open_data(bool resumed);
  void restore();
  StepBatches batches_of(int64_t step) const;
  StepNumbers numbers_of(double counted);
  void train_step();
  /// False, with problem_ set, when a loss was not finite.
  bool collect_losses();
  void log_window();
  Score score_split(const EvaluationPlan& plan);
  void evaluate_now();
  void save_checkpoint(bool best);
  bool weights_are_finite();
  void fail(const std::string& what);
  void finish();
  /// Has the model hold the weights of the best checkpoint; false, with a note to the listener,
  /// when that one is damaged.
  bool take_best_weights();
  RunStatus train_to_the_end();
  bool asked_to_stop() const;
  /// Completes the record.
  void write_result(RunStatus status);
  RunOutcome outcome(RunStatus status) const;
  double seconds_spent() const;

  ExperimentConfig experiment_;
  RunFolder folder_;
  at::Device device_;
  TrainListener& listener_;
  std::unique_ptr<tasks::Task> task_;
  std::shared_ptr<Model> model_;
  NamedTensors parameters_;
  std::optional<Optimizer> optimizer_;
  CheckpointStore checkpoints_;
  Metric metric_;
  RunState state_;
  std::optional<RunRecorder> recorder_;
  std::optional<Prefetcher<StepBatches>> batches_;
  std::vector<PendingStep> pending_;
  StepClock clock_;
  EvaluationClock evaluation_clock_;
  std::unique_ptr<WorkStream> stream_;  // after all that runs on it
  std::unique_ptr<BatchRunner> runner_;
  std::optional<Evaluator> evaluator_;
  InterruptGuard interrupt_;
  std::optional<std::chrono::steady_clock::time_point> stop_at_;
  std::string problem_;                   // why the run failed
  nlohmann::ordered_json result_ = {};    // of the record
  std::vector<std::string> graph_notes_;  // why work runs without a CUDA graph
  bool scores_test_ = false;              // at the end
  bool nothing_left_ = false;             // resumed after its end
  double last_loss_ = 0, learning_rate_ = 0;
  int64_t saved_step_ = -1;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  double seconds_before_ = 0;  // of earlier sittings
};

}  // namespace fmmformer::train
