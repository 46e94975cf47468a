// SPDX-License-Identifier: Apache-2.0
#include "report/escape.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>

namespace fmmformer::report {
namespace {

struct Replacement {
  std::string_view from;
  std::string_view to;
};

std::string replaced(std::string_view text, std::span<const Replacement> replacements) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const auto match = std::ranges::find_if(
        replacements, [&](const Replacement& one) { return text.starts_with(one.from); });
    const bool found = match != replacements.end();
    result += found ? match->to : text.substr(0, 1);
    text.remove_prefix(found ? match->from.size() : 1);
  }
  return result;
}

}  // namespace

std::string html_escaped(std::string_view text) {
  static constexpr std::array<Replacement, 5> kHtml = {
      {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}}};
  return replaced(text, kHtml);
}

std::string script_json(const nlohmann::json& value) {
  // These occur inside strings only, where the escape means the same character.
  static constexpr std::array<Replacement, 5> kScript = {{{"<", "\\u003c"},
                                                          {">", "\\u003e"},
                                                          {"&", "\\u0026"},
                                                          {"\xe2\x80\xa8", "\\u2028"},
                                                          {"\xe2\x80\xa9", "\\u2029"}}};
  return replaced(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), kScript);
}

}  // namespace fmmformer::report
