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

#include "train/file_system.h"

namespace fmmformer::train {

/// Holding it is holding the run's lock, which ends with the object or with the process, however
/// that ends.
class RunFolder {
 public:
  /// A new run. Throws std::runtime_error when the folder holds a run already (it says how to
  /// resume that), when another process holds it (it names the process), or when it cannot be
  /// created or written to.
  static RunFolder create(const std::filesystem::path& path);

  /// An existing run, to go on with. Throws std::runtime_error when there is none, when another
  /// process holds it, or when the folder cannot be written to.
  static RunFolder resume(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path config() const { return path_ / "config.toml"; }
  std::filesystem::path record() const { return path_ / "record.json"; }
  std::filesystem::path metrics() const { return path_ / "metrics.jsonl"; }
  std::filesystem::path checkpoints() const { return path_ / "checkpoints"; }
  std::filesystem::path events() const { return path_ / "events"; }

  /// Whole or not at all; throw std::runtime_error when the file cannot be written.
  void write_config(std::string_view toml) const;
  void write_record(const nlohmann::ordered_json& record) const;

  std::string read_config() const;
  /// An empty object when there is no record yet.
  nlohmann::ordered_json read_record() const;

 private:
  explicit RunFolder(std::filesystem::path path);
  bool holds_run() const;

  std::filesystem::path path_;
  OpenFile lock_;
};

}  // namespace fmmformer::train
