// SPDX-License-Identifier: Apache-2.0
// Files as people have them: plain, .xz or .gz, unpacked while they are read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tasks/data/data_error.h"

namespace fmmformer::tasks {

/// The bytes of a file; the end of its name (.xz, .gz) says how it is packed. Throws DataError that
/// names the file when it cannot be read, is damaged or ends too early.
class ByteSource {
 public:
  explicit ByteSource(std::filesystem::path path);
  ~ByteSource();

  /// Fills the room; less only at the end of the file.
  size_t read(std::span<char> room);
  const std::filesystem::path& path() const { return path_; }

  class Reader;  // of one kind of file

 private:
  std::filesystem::path path_;
  std::unique_ptr<Reader> reader_;
};

/// All of it.
std::string read_whole(const std::filesystem::path& path);

/// The same line by line.
class LineReader {
 public:
  explicit LineReader(const std::filesystem::path& path) : source_(path) {}

  /// The next line without its end, LF or CR LF; none after the last. It lives until the next call.
  std::optional<std::string_view> next();

  /// Throws DataError "FILE:LINE: what", about the line that next() gave.
  [[noreturn]] void fail(const std::string& what) const;

  /// Whether the file ended without an end of line: what was cut off looks like that.
  bool ended_inside_a_line() const { return ended_inside_a_line_; }

 private:
  bool fill();

  ByteSource source_;
  std::string buffer_;
  size_t begin_ = 0;  // of the next line in the buffer
  int64_t number_ = 0;
  bool ended_ = false, ended_inside_a_line_ = false;
};

}  // namespace fmmformer::tasks
