// SPDX-License-Identifier: Apache-2.0
#include "train/trainer.h"

#include <algorithm>

#include "train/training_session.h"

namespace fmmformer::train {
namespace {

// What may change when a run goes on: how long and how it is kept, not what it computes.
const std::vector<std::string> kMayChange = {"train.steps", "train.checkpoint_every",
                                             "train.keep_checkpoints", "train.prefetch_threads"};

void check_overrides(const std::vector<std::string>& overrides) {
  for (const std::string& assignment : overrides) {
    const std::string key = assignment.substr(0, assignment.find('='));
    if (std::ranges::find(kMayChange, key) != kMayChange.end()) continue;
    const std::string near = nearest_name(key, kMayChange);
    throw ConfigError("--set " + assignment + ": a run that goes on keeps its config, but for " +
                      join_names(kMayChange) +
                      (near.empty() ? "" : "; did you mean " + near + "?") +
                      ". For anything else begin a new run (--init-from takes over the weights)");
  }
}

}  // namespace

RunOutcome start_run(const ExperimentConfig& experiment, const std::filesystem::path& folder,
                     const TrainerOptions& options, TrainListener& listener) {
  return TrainingSession({.experiment = experiment, .folder = RunFolder::create(folder)}, options,
                         listener)
      .run();
}

RunOutcome resume_run(const std::filesystem::path& folder,
                      const std::vector<std::string>& overrides, const TrainerOptions& options,
                      TrainListener& listener) {
  check_overrides(overrides);
  if (!options.init_from.empty()) {
    throw ConfigError("--init-from begins a new run, --resume goes on with one: use one of them");
  }
  RunFolder held = RunFolder::resume(folder);
  ExperimentConfig experiment = load_experiment(held.config(), overrides);
  return TrainingSession(
             {.experiment = std::move(experiment), .folder = std::move(held), .resumed = true},
             options, listener)
      .run();
}

}  // namespace fmmformer::train
