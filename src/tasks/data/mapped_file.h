// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <span>

static_assert(std::endian::native == std::endian::little, "numbers are mapped as they are");

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

/// What a file begins with; it must be as long as that.
template <typename Header>
Header header_of(const MappedFile& file) {
  Header header;
  std::memcpy(&header, file.bytes().data(), sizeof(header));
  return header;
}
template <typename Header>
std::span<const std::byte> header_bytes(const Header& header) {
  return std::as_bytes(std::span(&header, 1));
}

}  // namespace fmmformer::tasks
