// SPDX-License-Identifier: Apache-2.0
// Archives as a row of members, read once from front to back: what is wanted of tens of gigabytes
// never has to be unpacked as a whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

namespace fmmformer::tasks::fetch {

/// An archive that cannot be read to its end. The text names the file, the cause and the way out.
class ArchiveError : public std::runtime_error {
 public:
  ArchiveError(const std::filesystem::path& archive, const std::string& cause);
};

enum class MemberKind { kFile, kFolder, kOther };  // kOther: links, devices

struct ArchiveMember {
  std::string path;  // as the archive has it: not to be trusted
  int64_t size = 0;
  MemberKind kind = MemberKind::kFile;
};

class ArchiveReader {
 public:
  virtual ~ArchiveReader() = default;

  /// The next member; nothing at the end of a sound archive. What was not read of the one before is
  /// passed over. Throws ArchiveError for a damaged one.
  virtual std::optional<ArchiveMember> next() = 0;

  /// Bytes of the present member into `buffer`: how many, 0 at the member's end.
  virtual size_t read(std::span<std::byte> buffer) = 0;

  /// How many bytes of the archive's file have been read.
  virtual int64_t position() const = 0;
};

/// Opens a .zip, a .tar or a .tar.gz, told apart by what is in them, not by their names. Throws
/// ArchiveError for anything else.
std::unique_ptr<ArchiveReader> open_archive(const std::filesystem::path& path);

}  // namespace fmmformer::tasks::fetch
