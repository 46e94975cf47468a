// SPDX-License-Identifier: Apache-2.0
// The file behind a text to predict: FOLDER/SPLIT.fmmtokens, mapped into memory.
//
//   header      48 bytes: magic, version, checksum, split, which vocabulary, counts (Header in
//               token_file.cpp)
//   tokens      u8, u16 or u32 [tokens]: the narrowest that holds the vocabulary
//
// Numbers are little-endian. The checksum is the CRC-32C of the whole file, with zero in its place.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "tasks/corpus/vocabulary.h"
#include "tasks/data/data_error.h"
#include "tasks/data/mapped_file.h"
#include "tasks/split.h"

namespace fmmformer::tasks {

inline constexpr uint32_t kTokenFileVersion = 1;

/// FOLDER/SPLIT.fmmtokens
std::filesystem::path token_file_path(const std::filesystem::path& folder, Split split);

/// Tokens as the file has them.
std::string packed_tokens(std::span<const uint32_t> tokens, const Vocabulary& vocabulary);

/// Writes packed tokens, whole or not at all; the folder is made if it is not there. Throws
/// DataError when there are none, std::runtime_error when the file cannot be written.
void write_token_file(const std::filesystem::path& folder, Split split,
                      const Vocabulary& vocabulary, std::string_view packed);

/// A file, ready to read; any number of threads may. Opening looks at its header and size alone.
class TokenFile {
 public:
  /// Throws DataError when the file is not there, not whole, of another version, split or
  /// vocabulary.
  TokenFile(const std::filesystem::path& folder, Split split, const Vocabulary& vocabulary);

  const std::filesystem::path& path() const { return path_; }
  int64_t tokens() const { return tokens_; }
  uint64_t file_bytes() const { return file_.bytes().size(); }

  /// Fills `out` with the tokens from number `begin` on. Throws DataError for tokens outside the
  /// file or the vocabulary, which only a damaged file asks for or holds.
  void read(int64_t begin, std::span<int64_t> out) const;

  /// Reads everything: throws DataError when a byte is not as it was written.
  void check() const;

 private:
  void check_header(Split split, const Vocabulary& vocabulary) const;
  [[noreturn]] void damaged() const;

  std::filesystem::path path_;
  MappedFile file_;
  int64_t vocabulary_;
  int64_t tokens_ = 0;
};

}  // namespace fmmformer::tasks
