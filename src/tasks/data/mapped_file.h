// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <utility>

#include "fmmformer/core/crc32c.h"
#include "tasks/data/data_error.h"

static_assert(std::endian::native == std::endian::little, "numbers are mapped as they are");

namespace fmmformer::tasks {

/// The bytes of a file, mapped into memory: they cost no memory beyond the page cache, which all
/// runs on a machine share. Any number of threads may read them.
class MappedFile {
 public:
  /// Throws DataError when the file cannot be read or is empty; where there is none, `how_to_make`
  /// ends the message.
  MappedFile(const std::filesystem::path& path, const std::string& how_to_make);
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

/// Throws DataError unless the checksum in the header is that of header (with 0 in its place) and
/// all that follows.
template <typename Header>
void check_sum(const std::filesystem::path& path, const MappedFile& file) {
  Header header = header_of<Header>(file);
  const uint32_t wanted = std::exchange(header.checksum, 0);
  if (crc32c(file.bytes().subspan(sizeof(Header)), crc32c(header_bytes(header))) == wanted) return;
  throw DataError("'" + path.string() +
                  "' is damaged: its checksum does not fit its contents; import it again");
}

}  // namespace fmmformer::tasks
