// SPDX-License-Identifier: Apache-2.0
// What run folders and checkpoints need of the file system, with errors that help.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace fmmformer::train {

/// Throws std::runtime_error: "cannot ACTION 'path': cause; way out".
[[noreturn]] void fail_with_errno(std::string_view action, const std::filesystem::path& path,
                                  int error);

/// An open file, closed at the end of the scope.
class OpenFile {
 public:
  OpenFile() = default;
  /// Throws std::runtime_error when the file cannot be opened; flags as in open(2).
  OpenFile(std::filesystem::path path, int flags);
  OpenFile(OpenFile&& other) noexcept;
  OpenFile& operator=(OpenFile&& other) noexcept;
  ~OpenFile();

  int descriptor() const { return descriptor_; }
  const std::filesystem::path& path() const { return path_; }

  /// Writes all of it, or cuts the file back to what it held and throws std::runtime_error.
  void append(std::span<const std::byte> bytes);
  void append(std::string_view text);
  void truncate(uint64_t bytes);
  void sync();
  uint64_t size() const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

/// Creates the folder and those above it. Throws std::runtime_error; no error if it is there.
void create_folder(const std::filesystem::path& path);

/// Has the folder's entries written to the disk.
void sync_folder(const std::filesystem::path& path);

void rename_path(const std::filesystem::path& from, const std::filesystem::path& to);

/// Puts `fresh` in the place of the folder `old`, so that there is always one under that name where
/// the file system can do that; what was there has the name of `fresh` afterwards.
void exchange_paths(const std::filesystem::path& fresh, const std::filesystem::path& old);

/// The whole file. Throws std::runtime_error when it cannot be read.
std::string read_text(const std::filesystem::path& path);

}  // namespace fmmformer::train
