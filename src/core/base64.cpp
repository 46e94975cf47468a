// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/core/base64.h"

namespace fmmformer {
namespace {

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

std::string base64_encoded(std::span<const uint8_t> bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t j = 0; j < 3; ++j) group = group << 8 | (i + j < bytes.size() ? bytes[i + j] : 0u);
    for (size_t j = 0; j < 4; ++j) {
      text += i + j > bytes.size() ? '=' : kDigits[group >> (18 - 6 * j) & 63];
    }
  }
  return text;
}

std::optional<std::vector<uint8_t>> base64_decoded(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  std::vector<uint8_t> bytes;
  bytes.reserve(text.size() / 4 * 3);
  for (size_t i = 0; i < text.size(); i += 4) {
    uint32_t group = 0;
    size_t digits = 0;
    for (; digits < 4 && text[i + digits] != '='; ++digits) {
      const size_t digit = kDigits.find(text[i + digits]);
      if (digit == std::string_view::npos) return std::nullopt;
      group |= static_cast<uint32_t>(digit) << (18 - 6 * digits);
    }
    // '=' stands only at the end, once or twice.
    if (digits < 4 && (i + 4 < text.size() || digits < 2)) return std::nullopt;
    for (size_t j = digits; j < 4; ++j) {
      if (text[i + j] != '=') return std::nullopt;
    }
    for (size_t j = 0; j + 1 < digits; ++j)
      bytes.push_back(static_cast<uint8_t>(group >> (16 - 8 * j)));
  }
  return bytes;
}

}  // namespace fmmformer
