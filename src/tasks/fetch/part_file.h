// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

namespace fmmformer::tasks::fetch {

/// What has come of a file so far, under a name of its own (NAME.part) until the whole is there and
/// verified. One process at a time: the file is its own lock, which ends with the process, so that
/// neither a crash nor kill -9 leaves anything but NAME.part behind. Errors of the disk are thrown
/// as std::runtime_error that names the file, the cause and the way out; what came so far is kept.
class PartFile {
 public:
  /// Makes the file, or opens it with what an earlier run has left. Where another process has it,
  /// calls `on_wait` once and waits for that to end.
  PartFile(const std::filesystem::path& path, const std::function<void()>& on_wait);
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;
  ~PartFile();  // removes a file into which nothing came

  const std::filesystem::path& path() const { return path_; }
  int64_t size() const { return size_; }

  void append(std::span<const std::byte> bytes);
  void start_over();

  /// Refuses, before any of them has come, bytes that the disk has no room for.
  void require_room_for(int64_t bytes) const;

  /// Syncs the file to the disk and gives it its final name. Nothing may be called after.
  void publish(const std::filesystem::path& final_path);

 private:
  void open_and_lock(const std::function<void()>& on_wait);

  std::filesystem::path path_;
  int descriptor_ = -1;
  int64_t size_ = 0;
  bool published_ = false;
};

}  // namespace fmmformer::tasks::fetch
