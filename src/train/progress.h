// SPDX-License-Identifier: Apache-2.0
// What a training run tells whoever watches it.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "tasks/task.h"
#include "train/metric.h"

namespace fmmformer::train {

enum class RunStatus { kRunning, kFinished, kInterrupted, kFailed };

/// How a sitting of a run ended.
struct RunOutcome {
  RunStatus status = RunStatus::kFinished;
  std::string message;  // why it failed; empty otherwise
  int signal = 0;       // that interrupted it
  std::filesystem::path folder;
  int64_t step = 0;
  Metric metric = kAccuracy;
  double best_metric = 0;  // not a number before the first evaluation
  int64_t best_step = 0;
  double seconds = 0;
};

struct StepReport {
  int64_t step = 0;  // steps done
  int64_t steps = 0;
  double loss = 0;  // the last one known
  double tokens_per_second = 0;
  double seconds_left = 0;
};

struct MetricReport {
  int64_t step = 0;
  tasks::Split split = tasks::Split::kTrain;
  double loss = 0;
  double metric = 0;
  double learning_rate = 0;  // train only
  double tokens_per_second = 0;
  bool is_best = false;
};

/// Override what is of interest; all calls come from the training thread.
class TrainListener {
 public:
  virtual ~TrainListener() = default;
  /// Before the first step; `first_step` > 0 when resumed.
  virtual void started(int64_t /*parameters*/, int64_t /*first_step*/, const Metric&) {}
  virtual void stepped(const StepReport&) {}
  virtual void evaluating(int64_t /*done*/, int64_t /*all*/) {}
  virtual void measured(const MetricReport&) {}
  virtual void saved(int64_t /*step*/, const std::string& /*path*/) {}
  /// Something the user should know and that is no error.
  virtual void noticed(const std::string&) {}
  /// The last call; not made for a run that ends by an exception.
  virtual void ended(const RunOutcome&) {}
};

}  // namespace fmmformer::train

template <>
struct fmmformer::EnumTable<fmmformer::train::RunStatus> {
  static constexpr std::string_view kKind = "status of a run";
  static std::span<const EnumName<train::RunStatus>> entries() {
    static constexpr std::array<EnumName<train::RunStatus>, 4> kEntries = {
        {{train::RunStatus::kRunning, "running"},
         {train::RunStatus::kFinished, "finished"},
         {train::RunStatus::kInterrupted, "interrupted"},
         {train::RunStatus::kFailed, "failed"}}};
    return kEntries;
  }
};
