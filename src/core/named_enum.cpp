// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/core/named_enum.h"

#include <algorithm>
#include <numeric>

namespace fmmformer {
namespace {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row.back();
}

/// How far `name` is from being the candidate, or its beginning: long names are often cut short.
size_t distance_to(std::string_view name, std::string_view candidate) {
  const size_t whole = edit_distance(name, candidate);
  if (name.size() < 4 || candidate.size() <= name.size()) return whole;
  const size_t beginning = edit_distance(name, candidate.substr(0, name.size()));
  return beginning <= name.size() / 4 ? std::min(whole, beginning + 1) : whole;
}

}  // namespace

std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates) {
  std::string best;
  // More than half of the letters wrong is a different word, not a slip.
  size_t best_distance = std::max<size_t>(2, name.size() / 2) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = distance_to(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string join_names(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace fmmformer
