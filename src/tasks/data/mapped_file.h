// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace fmmformer::tasks {

/// The bytes of a file, mapped into memory: they cost no memory beyond the page cache, which all
/// runs on a machine share. Any number of threads may read them.
class MappedFile {
 public:
  /// Throws DataError when the file cannot be read or is empty.
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace fmmformer::tasks
