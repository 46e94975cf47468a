// SPDX-License-Identifier: Apache-2.0
// What the tokens of a text stand for: FOLDER/vocabulary.txt, beside the tokens.
//
//   fmmformer-vocabulary 1 word 33278 9f3a01c7      version, level, tokens, checksum of the words
//   <eos>                                           token 0
//   the                                             token 1, the most frequent word
//   ...
//
// A text file, so that a person can look up a token (its line is its number and two). A vocabulary
// of bytes has the first line alone.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "fmmformer/core/named_enum.h"

namespace fmmformer::tasks {

enum class TextLevel {
  kWord,  // a token is a word, or the end of a line
  kByte,  // a token is a byte, the end of a line one of them
};

inline constexpr std::string_view kEndOfLine = "<eos>";  // of every vocabulary of words
inline constexpr uint32_t kEndOfLineToken = 0;
inline constexpr std::string_view kUnknownWord = "<unk>";  // an ordinary word, if the text has it
inline constexpr uint32_t kVocabularyVersion = 1;

class Vocabulary {
 public:
  static Vocabulary of_bytes();
  /// A word's place is its token; the first is kEndOfLine. Throws std::logic_error for a word that
  /// stands there twice.
  static Vocabulary of_words(std::vector<std::string> words);

  /// FOLDER/vocabulary.txt; throws DataError when it is not there, not whole, or of another
  /// version.
  static Vocabulary read(const std::filesystem::path& folder);
  /// Whole or not at all. Throws std::runtime_error when it cannot be written.
  void write(const std::filesystem::path& folder) const;

  TextLevel level() const { return level_; }
  int64_t size() const { return level_ == TextLevel::kByte ? 256 : std::ssize(words_); }

  /// The token of a word (of one byte, for bytes); none when it is not in the vocabulary.
  std::optional<int64_t> find(std::string_view word) const;
  /// The words by their tokens; none of a vocabulary of bytes.
  std::span<const std::string> words() const { return words_; }
  /// A token for the eyes of a person.
  std::string text(int64_t token) const;

  /// Tells vocabularies apart: files of tokens carry that of theirs.
  uint32_t fingerprint() const { return fingerprint_; }

 private:
  Vocabulary(TextLevel level, std::vector<std::string> words);

  TextLevel level_;
  std::vector<std::string> words_;
  std::unordered_map<std::string, uint32_t> tokens_;  // of the words
  uint32_t fingerprint_;
};

std::filesystem::path vocabulary_path(const std::filesystem::path& folder);

/// What errors advise: "make it with `fmmformer data import wikitext ...`".
std::string how_to_import(const std::filesystem::path& folder);

}  // namespace fmmformer::tasks

template <>
struct fmmformer::EnumTable<fmmformer::tasks::TextLevel> {
  static constexpr std::string_view kKind = "level";
  static std::span<const EnumName<tasks::TextLevel>> entries() {
    static constexpr std::array<EnumName<tasks::TextLevel>, 2> kEntries = {
        {{tasks::TextLevel::kWord, "word"}, {tasks::TextLevel::kByte, "byte"}}};
    return kEntries;
  }
};
