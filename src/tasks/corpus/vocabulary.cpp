// SPDX-License-Identifier: Apache-2.0
#include "tasks/corpus/vocabulary.h"

#include <cstdio>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "fmmformer/core/atomic_file.h"
#include "fmmformer/core/crc32c.h"
#include "tasks/corpus/words.h"
#include "tasks/data/byte_source.h"

namespace fmmformer::tasks {
namespace {

constexpr std::string_view kVocabularyMagic = "fmmformer-vocabulary";

std::string lines_of(std::span<const std::string> words) {
  std::string lines;
  for (const std::string& word : words) lines += word + "\n";
  return lines;
}

uint32_t fingerprint_of(TextLevel level, std::string_view lines) {
  return crc32c(lines, crc32c(enum_name(level)));
}

std::string header_of(const Vocabulary& vocabulary) {
  std::array<char, 16> checksum;
  std::snprintf(checksum.data(), checksum.size(), "%08x", vocabulary.fingerprint());
  return std::string(kVocabularyMagic) + " " + std::to_string(kVocabularyVersion) + " " +
         std::string(enum_name(vocabulary.level())) + " " + std::to_string(vocabulary.size()) +
         " " + checksum.data() + "\n";
}

std::vector<std::string> split_lines(std::string_view lines) {
  std::vector<std::string> words;
  while (!lines.empty()) {
    const size_t end = std::min(lines.find('\n'), lines.size());
    words.emplace_back(lines.substr(0, end));
    lines.remove_prefix(std::min(end + 1, lines.size()));
  }
  return words;
}

}  // namespace

std::filesystem::path vocabulary_path(const std::filesystem::path& folder) {
  return folder / "vocabulary.txt";
}

std::string how_to_import(const std::filesystem::path& folder) {
  return "make it with `fmmformer data import wikitext SOURCE --out " + folder.string() +
         "` (`fmmformer data list` says what SOURCE can be), or name the folder that holds it in "
         "task.wikitext.data";
}

Vocabulary::Vocabulary(TextLevel level, std::vector<std::string> words)
    : level_(level),
      words_(std::move(words)),
      fingerprint_(fingerprint_of(level_, lines_of(words_))) {
  tokens_.reserve(words_.size());
  for (const std::string& word : words_) {
    if (!tokens_.emplace(word, static_cast<uint32_t>(tokens_.size())).second) {
      throw std::logic_error("vocabulary: the word '" + word + "' stands there twice");
    }
  }
}

Vocabulary Vocabulary::of_bytes() { return {TextLevel::kByte, {}}; }

Vocabulary Vocabulary::of_words(std::vector<std::string> words) {
  return {TextLevel::kWord, std::move(words)};
}

Vocabulary Vocabulary::read(const std::filesystem::path& folder) {
  const std::filesystem::path path = vocabulary_path(folder);
  const auto fail = [&](const std::string& what) {
    throw DataError("'" + path.string() + "' " + what);
  };
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    throw DataError("there is no '" + path.string() + "'; " + how_to_import(folder));
  }
  const std::string file = read_whole(path);
  const size_t header_end = std::min(file.find('\n'), file.size());
  std::istringstream header(file.substr(0, header_end));
  std::string magic, level_name;
  uint32_t version = 0;
  header >> magic >> version;
  if (magic != kVocabularyMagic) fail("is no vocabulary of fmmformer; " + how_to_import(folder));
  if (version != kVocabularyVersion) {
    fail("has format version " + std::to_string(version) + ", this program reads " +
         std::to_string(kVocabularyVersion) + "; import it again");
  }
  header >> level_name;
  const bool bytes = level_name == enum_name(TextLevel::kByte);
  const std::string_view lines =
      std::string_view(file).substr(std::min(header_end + 1, file.size()));
  const TextLevel level = bytes ? TextLevel::kByte : TextLevel::kWord;
  // The first line says how many words and which checksum: compared before the words are taken for
  // words, and as a whole afterwards.
  std::array<char, 16> checksum;
  std::snprintf(checksum.data(), checksum.size(), " %08x", fingerprint_of(level, lines));
  const bool whole = std::string_view(file).substr(0, header_end).ends_with(checksum.data());
  if (!whole) fail("is damaged: its checksum does not fit its contents; import it again");
  Vocabulary vocabulary(level, split_lines(lines));
  if (header_of(vocabulary) != file.substr(0, header_end + 1)) {
    fail("is damaged in its first line; import it again");
  }
  return vocabulary;
}

void Vocabulary::write(const std::filesystem::path& folder) const {
  std::filesystem::create_directories(folder);
  write_file_atomically(vocabulary_path(folder), header_of(*this) + lines_of(words_));
}

std::optional<int64_t> Vocabulary::find(std::string_view word) const {
  if (level_ == TextLevel::kByte) {
    if (word.size() != 1) return std::nullopt;
    return static_cast<uint8_t>(word[0]);
  }
  const auto found = tokens_.find(std::string(word));
  if (found == tokens_.end()) return std::nullopt;
  return found->second;
}

std::string Vocabulary::text(int64_t token) const {
  if (token < 0 || token >= size()) return "?";
  if (level_ == TextLevel::kWord) return readable_word(words_[static_cast<size_t>(token)]);
  if (token < 0x80) return readable_word(std::string(1, static_cast<char>(token)));
  std::array<char, 8> spelled;  // a part of a character
  std::snprintf(spelled.data(), spelled.size(), "\\x%02x", static_cast<unsigned>(token));
  return spelled.data();
}

}  // namespace fmmformer::tasks
