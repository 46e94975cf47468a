// SPDX-License-Identifier: Apache-2.0
#include "report/wikitext.h"

#include <algorithm>

namespace fmmformer::report {

std::optional<WikitextName> wikitext_name(std::string_view name) {
  const size_t slash = name.find('/');
  if (slash == name.npos) return std::nullopt;
  const std::string_view corpus = name.substr(0, slash), row = name.substr(slash + 1);
  if (corpus != "wikitext103" && corpus != "wikitext2") return std::nullopt;
  if (std::ranges::find(kPaperPerplexities, row, &PaperPerplexity::row) ==
      kPaperPerplexities.end()) {
    return std::nullopt;
  }
  return WikitextName{std::string(corpus), std::string(row)};
}

std::optional<WikitextName> wikitext_run(const Record& record) {
  const auto name = wikitext_name(record.name);
  if (!name) return std::nullopt;
  const std::string_view tokens = name->corpus == "wikitext103" ? "267735" : "33278";
  const auto line = std::ranges::find(record.config, "model.vocabulary", &ConfigLine::first);
  return line != record.config.end() && line->second == tokens ? name : std::nullopt;
}

}  // namespace fmmformer::report
