// SPDX-License-Identifier: Apache-2.0
// The training loop. A run is a function of its experiment (seed included): batches, dropout and
// schedule follow from the step's number, so a run that was cut anywhere and resumed from its last
// checkpoint ends with the bits of one that was not, on the same machine.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "train/experiment.h"
#include "train/progress.h"
#include "train/run_recorder.h"

namespace fmmformer::train {

struct TrainerOptions {
  c10::Device device = c10::Device(c10::kCPU);
  RunIdentity identity;
  std::filesystem::path init_from;  // weights to begin with: a run folder or a safetensors file
  // From then on the next step is the last of this sitting: the run is saved, as after Ctrl-C.
  std::optional<std::chrono::steady_clock::time_point> stop_at = {};
};

/// Trains from the beginning, into a new folder. Throws std::runtime_error or ConfigError when the
/// run cannot begin or cannot be written; what is on disk then stays as it was last saved. A loss
/// that is no longer finite is an outcome (kFailed), not an exception.
RunOutcome start_run(const ExperimentConfig& experiment, const std::filesystem::path& folder,
                     const TrainerOptions& options, TrainListener& listener);

/// Goes on from the newest good checkpoint of a run, or from the beginning when there is none yet.
/// `overrides` may only lengthen the run (train.steps; where the schedule spans the run, its rates
/// change with it) and set how checkpoints are kept, batches prefetched and steps launched, and
/// whether the test split is scored at the end.
RunOutcome resume_run(const std::filesystem::path& folder,
                      const std::vector<std::string>& overrides, const TrainerOptions& options,
                      TrainListener& listener);

/// Throws ConfigError, naming the first key that differs, when `folder` holds a run of another
/// experiment than `asked`. What resume_run()'s overrides may change does not count, nor do names.
void check_run_is_of(const ExperimentConfig& asked, const std::filesystem::path& folder);

}  // namespace fmmformer::train
