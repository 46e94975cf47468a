// SPDX-License-Identifier: Apache-2.0
#include "tasks/data/columns.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace fmmformer::tasks {
namespace {

constexpr size_t kShown = 40;  // bytes of a wrong text in an error

// In quotes, cut, and with no byte that a terminal could take for a command.
std::string quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text.substr(0, kShown)) out += c >= 0x20 && c < 0x7F ? c : '?';
  return out + (text.size() > kShown ? "...'" : "'");
}

// Bytes of the UTF-8 character that begins here; 0: none does.
size_t utf8_length(std::string_view text) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = at(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((at(i) & 0xC0) != 0x80) return 0;
  }
  // Too long a form of a small number, half of a pair, or beyond the last character.
  const uint8_t second = at(1);
  if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) ||
      (first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F)) {
    return 0;
  }
  return length;
}

}  // namespace

bool TableReader::next() {
  const auto line = lines_.next();
  if (!line) return false;
  if (lines_.ended_inside_a_line()) {
    fail(
        "the last line has no end: the file is cut off; get it again (or end the line, if this is "
        "all)");
  }
  line_ = *line;
  return true;
}

size_t TableReader::column_count() const {
  return static_cast<size_t>(std::ranges::count(line_, '\t')) + 1;
}

std::vector<std::string_view> TableReader::columns(size_t count) const {
  if (column_count() != count) wrong_count(count);
  return columns_and_rest(count);
}

std::vector<std::string_view> TableReader::columns_and_rest(size_t count) const {
  std::vector<std::string_view> found;
  std::string_view rest = line_;
  while (found.size() + 1 < count) {
    const size_t tab = rest.find('\t');
    if (tab == std::string_view::npos) wrong_count(count);
    found.push_back(rest.substr(0, tab));
    rest.remove_prefix(tab + 1);
  }
  found.push_back(rest);
  return found;
}

void TableReader::wrong_count(size_t wanted) const {
  const size_t came = column_count();
  fail("has " + std::to_string(came) + (came == 1 ? " column" : " columns") + ", wanted are " +
       std::to_string(wanted) + ": " + form_ + "; came: " + quoted(line_) +
       "; mend the line, or get the file again");
}

uint16_t TableReader::label(std::string_view column, size_t classes) const {
  const auto label = label_of(column, classes);
  if (!label) fail(wrong_label(column, classes));
  return *label;
}

void TableReader::require_utf8(std::string_view column) const {
  if (const size_t at = first_byte_not_utf8(column); at < column.size()) {
    fail("byte " + std::to_string(column.data() - line_.data() + static_cast<ptrdiff_t>(at) + 1) +
         " of the line is not UTF-8; convert the file, such as with `iconv -f latin1 -t utf-8`");
  }
}

std::optional<uint16_t> label_of(std::string_view text, size_t classes) {
  double value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (!(value >= 0 && value < static_cast<double>(classes)) || value != std::floor(value)) {
    return std::nullopt;
  }
  return static_cast<uint16_t>(value);
}

std::string wrong_label(std::string_view text, size_t classes) {
  return "label " + quoted(text) + ", allowed: 0.." + std::to_string(classes - 1) +
         "; mend the file, or check that it belongs to this task";
}

size_t first_byte_not_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t length = utf8_length(text.substr(at));
    if (length == 0) return at;
    at += length;
  }
  return at;
}

std::string_view stripped(std::string_view text) {
  constexpr std::string_view kWhite = " \t\n\r\v\f";
  const size_t begin = text.find_first_not_of(kWhite);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kWhite) - begin + 1);
}

}  // namespace fmmformer::tasks
