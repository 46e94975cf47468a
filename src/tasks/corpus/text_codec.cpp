// SPDX-License-Identifier: Apache-2.0
#include "tasks/corpus/text_codec.h"

#include <algorithm>

#include "tasks/corpus/words.h"

namespace fmmformer::tasks {
namespace {

EncodedText encoded_bytes(std::string_view text) {
  EncodedText result;
  for (const char c : text) result.tokens.push_back(static_cast<uint8_t>(c));
  return result;
}

void add_words(std::string_view line, const Vocabulary& vocabulary, EncodedText& result) {
  const auto stand_in = vocabulary.find(kUnknownWord);
  for (std::string_view word = next_word(line); !word.empty(); word = next_word(line)) {
    const auto token = vocabulary.find(word);
    if (token || stand_in) result.tokens.push_back(token ? *token : *stand_in);
    if (!token && std::ranges::find(result.unknown, word) == result.unknown.end()) {
      result.unknown.emplace_back(word);
    }
  }
}

}  // namespace

EncodedText encoded(std::string_view text, const Vocabulary& vocabulary) {
  if (vocabulary.level() == TextLevel::kByte) return encoded_bytes(text);
  EncodedText result;
  while (true) {
    const size_t end = text.find('\n');
    add_words(text.substr(0, end), vocabulary, result);
    if (end == std::string_view::npos) return result;
    result.tokens.push_back(kEndOfLineToken);
    text.remove_prefix(end + 1);
  }
}

std::string TextWriter::add(int64_t token) {
  if (vocabulary_->level() == TextLevel::kByte) {
    const char byte = static_cast<char>(token);
    const bool is_plain = byte == '\n' || byte == '\t' || token >= 0x80;  // parts of a character
    return is_plain ? std::string(1, byte) : vocabulary_->text(token);
  }
  const bool ends_line = token == kEndOfLineToken, spaced = !ends_line && !at_begin_of_line_;
  at_begin_of_line_ = ends_line;
  std::string text = spaced ? " " : "";
  return text.append(ends_line ? "\n" : vocabulary_->text(token));
}

}  // namespace fmmformer::tasks
