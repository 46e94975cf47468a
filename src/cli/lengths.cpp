// SPDX-License-Identifier: Apache-2.0
#include "cli/lengths.h"

#include <charconv>
#include <stdexcept>

namespace fmmformer::cli {
namespace {

int64_t parse_length(std::string_view part, const std::string& whole) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
  if (error != std::errc() || end != part.data() + part.size() || value < 1) {
    throw std::invalid_argument(
        "--lengths is '" + whole +
        "'; allowed: a range that doubles such as 512..65536, a list such as 100,1000, or one "
        "length; each 1 or more");
  }
  return value;
}

}  // namespace

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char letter : text) {
    if (letter == ',') {
      parts.emplace_back();
    } else {
      parts.back() += letter;
    }
  }
  return parts;
}

std::vector<int64_t> parse_lengths(const std::string& text) {
  std::vector<int64_t> lengths;
  const size_t dots = text.find("..");
  if (dots == std::string::npos) {
    for (const std::string& part : split_at_commas(text))
      lengths.push_back(parse_length(part, text));
    return lengths;
  }
  const int64_t first = parse_length(std::string_view(text).substr(0, dots), text);
  const int64_t last = parse_length(std::string_view(text).substr(dots + 2), text);
  if (last < first) {
    throw std::invalid_argument("--lengths is '" + text +
                                "'; the second length must not be smaller than the first");
  }
  for (int64_t length = first; length <= last; length *= 2) lengths.push_back(length);
  return lengths;
}

}  // namespace fmmformer::cli
