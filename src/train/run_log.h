// SPDX-License-Identifier: Apache-2.0
// metrics.jsonl: one JSON object a line, each with a "step", only ever appended to.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "train/file_system.h"

namespace fmmformer::train {

class RunLog {
 public:
  /// Opens the file, or creates it. With resume_step the log is first cut back to what had been
  /// written when that step was done: later lines, and a last line that a crash left incomplete,
  /// go. Throws std::runtime_error when the file cannot be read or written.
  explicit RunLog(const std::filesystem::path& path,
                  std::optional<int64_t> resume_step = std::nullopt);

  /// Writes one line, at once: a crash of this process loses none that was appended. A number that
  /// is not finite becomes null. Throws std::invalid_argument for a line without a whole-numbered
  /// "step"; std::runtime_error when the line cannot be written, and then leaves no part of it.
  void append(const nlohmann::ordered_json& line);

 private:
  OpenFile file_;
};

/// All lines, in order. A last line without its end is what a crash leaves, and is passed over.
/// Throws std::runtime_error, naming the line, for any other that is no object with a "step"; an
/// empty list when there is no file.
std::vector<nlohmann::ordered_json> read_run_log(const std::filesystem::path& path);

}  // namespace fmmformer::train
