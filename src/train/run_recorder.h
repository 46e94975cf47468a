// SPDX-License-Identifier: Apache-2.0
// What a run leaves for people to look at: metrics.jsonl, TensorBoard events, record.json.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "train/event_file.h"
#include "train/experiment.h"
#include "train/progress.h"
#include "train/run_folder.h"
#include "train/run_log.h"

namespace fmmformer::train {

/// Where and with what a run is made; what the program knows and the trainer does not.
struct RunIdentity {
  nlohmann::ordered_json machine = nlohmann::ordered_json::object();
  nlohmann::ordered_json versions = nlohmann::ordered_json::object();
  std::string commit;
  std::string command;
  std::string created;                 // UTC, ISO 8601
  std::vector<std::string> overrides;  // of the config, as given
};

/// What a record begins with.
struct RunDescription {
  ExperimentConfig experiment;
  Metric metric = kAccuracy;
  RunIdentity identity;
};

class RunRecorder {
 public:
  /// With resume_step, log and events are cut back to it, and the curves are read from the log.
  RunRecorder(const RunFolder& folder, const RunDescription& run,
              std::optional<int64_t> resume_step = std::nullopt);

  /// Appends to log, events and curves.
  void add(const MetricReport& report);

  /// Sets a member of the record ("result", "maps", ..); shown from the next write() on.
  void set(std::string_view member, nlohmann::ordered_json value);

  /// Writes record.json, whole.
  void write(RunStatus status, std::string_view message = "");

 private:
  void keep_beginning(const RunDescription& run);  // how it was begun, not how it is gone on with
  void add_to_curve(const MetricReport& report);

  const RunFolder& folder_;
  Metric metric_;
  RunLog log_;
  EventFile events_;
  nlohmann::ordered_json record_;
};

}  // namespace fmmformer::train
