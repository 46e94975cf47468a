// SPDX-License-Identifier: Apache-2.0
#include "train/trainer.h"

#include <algorithm>

#include "train/training_session.h"

namespace fmmformer::train {
namespace {

// What may change when a run goes on: how long and how it is kept, not what it computes.
const std::vector<std::string> kMayChange = {"train.steps",
                                             "train.checkpoint_every",
                                             "train.keep_checkpoints",
                                             "train.prefetch_threads",
                                             "train.cuda_graph",
                                             "train.test"};

bool may_change(const std::string& key) {
  return std::ranges::find(kMayChange, key) != kMayChange.end();
}

// An override that says what the run does anyway is no change: the command that began a run, typed
// again with --resume, goes on with it.
void check_unchanged(const ExperimentConfig& before, const ExperimentConfig& after) {
  for (const ConfigDifference& difference : differences(before, after)) {
    if (may_change(difference.key)) continue;
    throw ConfigError(
        difference.key + " is " + difference.first + " in this run and " + difference.second +
        " in --set: a run that goes on keeps its config, but for " + join_names(kMayChange) +
        "; for anything else begin a new run (--init-from takes over the weights)");
  }
}

// "Bit for bit" is promised of a run that goes on; where it cannot hold, that is said.
void note_stretched_schedule(const ExperimentConfig& before, const ExperimentConfig& after,
                             TrainListener& listener) {
  if (before.train.steps == after.train.steps || !spans_the_run(after.schedule.kind)) return;
  listener.noticed("the " + std::string(enum_name(after.schedule.kind)) +
                   " schedule spans the run, which had " + std::to_string(before.train.steps) +
                   " steps until now: results will not be those of a run that had " +
                   std::to_string(after.train.steps) + " from the start");
}

}  // namespace

RunOutcome start_run(const ExperimentConfig& experiment, const std::filesystem::path& folder,
                     const TrainerOptions& options, TrainListener& listener) {
  return TrainingSession({.experiment = experiment, .folder = RunFolder::create(folder)}, options,
                         listener)
      .run();
}

void check_run_is_of(const ExperimentConfig& asked, const std::filesystem::path& folder) {
  const std::filesystem::path config = RunPaths(folder).config();
  if (!std::filesystem::exists(config)) return;  // resuming it says what is missing
  for (const ConfigDifference& difference : differences(asked, load_run_experiment(config))) {
    if (may_change(difference.key)) continue;
    throw ConfigError("run folder '" + folder.string() +
                      "' holds a run of another config: " + difference.key + " is " +
                      difference.second + " there and " + difference.first +
                      " in what was asked for; name the folder instead of a "
                      "config to go on with it as it is, or use another folder (--out)");
  }
}

RunOutcome resume_run(const std::filesystem::path& folder,
                      const std::vector<std::string>& overrides, const TrainerOptions& options,
                      TrainListener& listener) {
  if (!options.init_from.empty()) {
    throw ConfigError("--init-from begins a new run, --resume goes on with one: use one of them");
  }
  RunFolder held = RunFolder::resume(folder);
  const ExperimentConfig before = load_run_experiment(held.config());
  ExperimentConfig experiment = load_run_experiment(held.config(), overrides);
  check_unchanged(before, experiment);
  note_stretched_schedule(before, experiment, listener);
  return TrainingSession(
             {.experiment = std::move(experiment), .folder = std::move(held), .resumed = true},
             options, listener)
      .run();
}

}  // namespace fmmformer::train
