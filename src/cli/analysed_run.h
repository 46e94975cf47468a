// SPDX-License-Identifier: Apache-2.0
// A trained model, examples of its task, and where findings about it go: what the commands of
// `fmmformer analyze` share.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "cli/device_options.h"
#include "cli/run_options.h"
#include "fmmformer/models/batch_tensors.h"
#include "tasks/task.h"

namespace fmmformer::cli {

struct AnalysisOptions {
  RunOptions run;
  std::string split = "valid";
  int64_t length = 256;
  std::string json;
  bool leave_record = false;
  DeviceOptions device;
};

/// RUN, --split, --length, --json, --no-save and the device.
void add_analysis_options(CLI::App& app, AnalysisOptions& options);

class AnalysedRun {
 public:
  explicit AnalysedRun(const AnalysisOptions& options);

  const train::TrainedModel& trained() const { return trained_; }
  const Model& model() const { return *trained_.model; }
  const tasks::Task& task() const { return *task_; }
  const c10::Device& device() const { return device_; }
  /// "runs/x, step 1200": what a table is about.
  std::string title() const;
  /// How many examples there are of those that one would like to see.
  int64_t examples(int64_t wanted) const;

  Batch example(int64_t number) const;
  /// The same for the model, cut to --length tokens and without the padding at its end.
  ModelInputs inputs(int64_t number) const;

  /// Puts the findings where the user wants them: under analysis/`what` in the run's record.json,
  /// and in the file of --json. The step of the weights, split and length are added.
  void keep(std::string_view what, nlohmann::ordered_json findings) const;
  /// The same for members of the record itself.
  void keep_members(nlohmann::ordered_json members) const;

 private:
  AnalysisOptions options_;
  std::string folder_;
  tasks::Split split_;
  c10::Device device_;
  train::TrainedModel trained_;
  std::unique_ptr<tasks::Task> task_;
};

}  // namespace fmmformer::cli
