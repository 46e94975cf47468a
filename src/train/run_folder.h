// SPDX-License-Identifier: Apache-2.0
// The folder of one training run, held by one process at a time:
//   config.toml    what was asked for, resolved      record.json    everything a report shows
//   metrics.jsonl  one line per measurement          checkpoints/   checkpoint_store.h
//   events/        for TensorBoard                   lock           who is writing
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "train/file_system.h"

namespace fmmformer::train {

/// Where a run's files are: for whoever only reads them, too.
class RunPaths {
 public:
  explicit RunPaths(std::filesystem::path folder) : folder_(std::move(folder)) {}

  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path config() const { return folder_ / "config.toml"; }
  std::filesystem::path record() const { return folder_ / "record.json"; }
  std::filesystem::path metrics() const { return folder_ / "metrics.jsonl"; }
  std::filesystem::path checkpoints() const { return folder_ / "checkpoints"; }
  std::filesystem::path events() const { return folder_ / "events"; }
  std::filesystem::path kept_model() const { return folder_ / "model.safetensors"; }  // kept_run.h

  bool holds_run() const;
  /// Throw std::invalid_argument when the folder holds no run, std::runtime_error when a file
  /// cannot be read. The record is an empty object as long as there is none.
  std::string read_config() const;
  nlohmann::ordered_json read_record() const;

 private:
  std::filesystem::path folder_;
};

/// Holding it is holding the run's lock, which ends with the object or with the process, however
/// that ends.
class RunFolder : public RunPaths {
 public:
  /// A new run. Throws std::invalid_argument when the folder holds a run already (it says how to go
  /// on with that); std::runtime_error when another process holds it (it names the process), or
  /// when it cannot be created or written to.
  static RunFolder create(const std::filesystem::path& folder);

  /// An existing run, to go on with. Throws std::invalid_argument when there is none;
  /// std::runtime_error when another process holds it, or when it cannot be written to.
  static RunFolder resume(const std::filesystem::path& folder);

  /// Whole or not at all; throw std::runtime_error when the file cannot be written.
  void write_config(std::string_view toml) const;
  void write_record(const nlohmann::ordered_json& record) const;

 private:
  explicit RunFolder(const std::filesystem::path& folder);

  OpenFile lock_;
};

}  // namespace fmmformer::train
