// SPDX-License-Identifier: Apache-2.0
#include "tasks/corpus/words.h"

#include <array>
#include <cstdint>
#include <cstdio>

namespace fmmformer::tasks {
namespace {

// Bytes of the white space that the text begins with; 0: it begins with a word.
size_t space_length(std::string_view text) {
  const auto at = [&](size_t i) {
    return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0};
  };
  const uint8_t first = at(0), second = at(1), third = at(2);
  if (first < 0x80) {
    const bool space = first == ' ' || (first >= 0x09 && first <= 0x0D) ||
                       (first >= 0x1C && first <= 0x1F);  // the old separators of files and records
    return space ? 1 : 0;
  }
  if (first == 0xC2) return second == 0x85 || second == 0xA0 ? 2 : 0;  // next line, no-break space
  const bool space =
      (first == 0xE1 && second == 0x9A && third == 0x80) ||  // U+1680
      (first == 0xE2 && second == 0x80 &&                    // U+2000 .. 200A, 2028, 2029, 202F
       ((third >= 0x80 && third <= 0x8A) || third == 0xA8 || third == 0xA9 || third == 0xAF)) ||
      (first == 0xE2 && second == 0x81 && third == 0x9F) ||  // U+205F
      (first == 0xE3 && second == 0x80 && third == 0x80);    // U+3000
  return space ? 3 : 0;
}

}  // namespace

std::string_view next_word(std::string_view& text) {
  while (!text.empty()) {
    const size_t space = space_length(text);
    if (space == 0) break;
    text.remove_prefix(space);
  }
  size_t end = 0;
  while (end < text.size() && space_length(text.substr(end)) == 0) ++end;
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(end);
  return word;
}

std::string readable_word(std::string_view word) {
  std::string text;
  for (const char c : word) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte >= 0x20 && byte != 0x7F) {
      text += c;
      continue;
    }
    std::array<char, 8> spelled;
    std::snprintf(spelled.data(), spelled.size(), "\\x%02x", byte);
    text += spelled.data();
  }
  return text;
}

}  // namespace fmmformer::tasks
