// SPDX-License-Identifier: Apache-2.0
#include "report/lra.h"

#include <algorithm>

namespace fmmformer::report {
namespace {

struct PaperRow {
  std::string_view row;
  std::array<double, kLraTasks.size()> accuracy;
  double average;
};

constexpr PaperRow kTable1[] = {{"softmax", {37.10, 64.17, 80.71, 39.06, 72.48}, 58.70},
                                {"linear", {18.30, 64.22, 81.37, 38.29, 71.17}, 54.67},
                                {"band5", {32.16, 66.31, 79.41, 43.33, 67.44}, 57.73},
                                {"fmm1_band5", {33.22, 66.52, 81.50, 45.01, 71.29}, 59.51},
                                {"fmm2_band5", {36.74, 67.84, 81.88, 45.10, 72.12}, 60.74}};

const PaperRow* paper_row(std::string_view row) {
  const auto* found = std::ranges::find(kTable1, row, &PaperRow::row);
  return found == std::end(kTable1) ? nullptr : found;
}

}  // namespace

std::optional<LraName> lra_name(std::string_view name) {
  constexpr std::string_view kPrefix = "lra/", kTiny = "tiny/";
  const bool tiny = name.starts_with(kTiny);
  if (tiny) name.remove_prefix(kTiny.size());
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  const size_t slash = name.find('/'), dot = name.rfind('.');
  if (slash == name.npos || dot == name.npos || dot < slash) return std::nullopt;
  LraName parts{.task = std::string(name.substr(0, slash)),
                .row = std::string(name.substr(slash + 1, dot - slash - 1)),
                .recipe = std::string(name.substr(dot + 1)),
                .tiny = tiny};
  if (std::ranges::find(kLraTasks, parts.task) == kLraTasks.end()) return std::nullopt;
  return parts;
}

std::optional<double> paper_accuracy(std::string_view task, std::string_view row) {
  // Text at the length that the published script makes: which of the two the paper's numbers are
  // of, it does not say.
  constexpr std::string_view kShort = "_1024";
  if (row.ends_with(kShort)) row.remove_suffix(kShort.size());
  const PaperRow* numbers = paper_row(row);
  const auto* place = std::ranges::find(kLraTasks, task);
  if (numbers == nullptr || place == kLraTasks.end()) return std::nullopt;
  return numbers->accuracy[static_cast<size_t>(place - kLraTasks.begin())];
}

std::optional<double> paper_average(std::string_view row) {
  const PaperRow* numbers = paper_row(row);
  return numbers == nullptr ? std::nullopt : std::optional(numbers->average);
}

}  // namespace fmmformer::report
