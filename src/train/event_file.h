// SPDX-License-Identifier: Apache-2.0
// Scalars for TensorBoard. The format: records of
//   8 bytes length, 4 bytes masked CRC-32C of those, the data, 4 bytes masked CRC-32C of the data,
// each a protocol buffer "Event" with a wall time, a step and either a file version, a session's
// start or a summary of one named scalar.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

#include "train/file_system.h"

namespace fmmformer::train {

class EventFile {
 public:
  /// Begins a new file in `folder`, which is created if need be; its name sorts after those of
  /// files there already, as TensorBoard wants it. With resume_step, TensorBoard is told to forget
  /// what earlier files say of later steps. Throws std::runtime_error when it cannot be written.
  explicit EventFile(const std::filesystem::path& folder,
                     std::optional<int64_t> resume_step = std::nullopt);

  /// Appends one scalar, at once. Throws std::runtime_error when it cannot be written.
  void scalar(std::string_view tag, int64_t step, double value);

  const std::filesystem::path& path() const { return file_.path(); }

 private:
  void append_event(int64_t step, std::string_view content);

  OpenFile file_;
};

}  // namespace fmmformer::train
