// SPDX-License-Identifier: Apache-2.0
// The one file format behind all data tasks: FOLDER/SPLIT.fmmdata, mapped into memory.
//
//   header      72 bytes: magic, version, checksum, task, split, counts (Header in cache.cpp)
//   offsets     u64 [documents + 1]: document i is bytes offsets[i] .. offsets[i + 1] - 1
//   first       u32 [examples]: the example's document
//   second      u32 [examples]: its other document, or kNoDocument
//   labels      u16 [examples]
//   bytes       of all documents, one after another
//
// Numbers are little-endian. The checksum is the CRC-32C of the whole file, with zero in its place.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tasks/config.h"
#include "tasks/data/data_error.h"
#include "tasks/data/mapped_file.h"
#include "tasks/split.h"

namespace fmmformer::tasks {

inline constexpr uint32_t kCacheVersion = 1;
inline constexpr uint32_t kNoDocument = 0xFFFFFFFF;

struct Example {
  uint16_t label = 0;
  uint32_t first = 0;
  uint32_t second = kNoDocument;
  friend bool operator==(const Example&, const Example&) = default;
};

/// FOLDER/SPLIT.fmmdata
std::filesystem::path cache_path(const std::filesystem::path& folder, Split split);

/// The split that a data file says it holds, whatever its name. Throws DataError when it is none.
Split split_of_file(const std::filesystem::path& file);

/// Documents and examples on their way into a file.
class CacheWriter {
 public:
  /// Gives its number.
  uint32_t add_document(std::string_view bytes);
  /// Its documents must be there.
  void add_example(const Example& example);
  /// A document and the example that it is.
  void add(std::string_view document, uint16_t label);

  int64_t documents() const { return static_cast<int64_t>(offsets_.size()) - 1; }
  int64_t examples() const { return static_cast<int64_t>(labels_.size()); }
  std::string_view document(uint32_t index) const;
  Example example(int64_t index) const;
  /// The given examples in the given order, with the documents they need.
  CacheWriter subset(std::span<const uint32_t> examples) const;

  /// Writes the file whole or not at all; the folder is made if it is not there. Throws DataError
  /// when there are no examples, std::runtime_error when it cannot be written.
  void write(const std::filesystem::path& folder, TaskName task, Split split) const;

 private:
  std::vector<uint64_t> offsets_ = {0};
  std::vector<uint32_t> first_, second_;
  std::vector<uint16_t> labels_;
  std::string bytes_;
};

/// A file, ready to read; any number of threads may. Opening looks at its header and size alone.
class DataCache {
 public:
  /// Throws DataError when the file is not there, not whole, of another version, task or split.
  DataCache(const std::filesystem::path& folder, TaskName task, Split split)
      : DataCache(task, split, cache_path(folder, split)) {}
  /// The same of a file whatever it is called.
  static DataCache of_file(const std::filesystem::path& file, TaskName task, Split split) {
    return {task, split, file};
  }

  const std::filesystem::path& path() const { return path_; }
  int64_t documents() const { return static_cast<int64_t>(offsets_.size()) - 1; }
  int64_t examples() const { return static_cast<int64_t>(labels_.size()); }
  uint64_t file_bytes() const { return file_.bytes().size(); }

  /// Throw DataError for what lies outside, which only a damaged file holds.
  Example example(int64_t index) const;
  std::string_view document(uint32_t index) const;

  /// Reads everything: throws DataError when a byte is not as it was written.
  void check() const;

 private:
  DataCache(TaskName task, Split split, const std::filesystem::path& file);
  void check_header(TaskName task, Split split) const;
  void place_arrays();
  [[noreturn]] void damaged() const;

  std::filesystem::path path_;
  MappedFile file_;
  std::span<const uint64_t> offsets_;
  std::span<const uint32_t> first_, second_;
  std::span<const uint16_t> labels_;
  std::span<const char> bytes_;
};

}  // namespace fmmformer::tasks
