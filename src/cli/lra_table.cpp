// SPDX-License-Identifier: Apache-2.0
#include "cli/lra_table.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>

#include "cli/formatted.h"
#include "cli/run_table.h"
#include "report/lra.h"

namespace fmmformer::cli {
namespace {

using report::LraName;
using report::Record;
using report::Spread;
using report::TrainingResult;

const std::vector<std::string> kHeading = {"task",    "model", "recipe", "seeds",
                                           "valid",   "test",  "paper",  "difference",
                                           "ms/step", "time",  "memory", "state"};
constexpr NumberColumns kLraNumbers = {.first = 3, .after = 11};

struct LraEntry : RunsOfLine {
  LraName name;
};

std::vector<LraEntry> lra_entries_of(const std::vector<Record>& records) {
  std::vector<LraEntry> entries;
  for (const Record& record : records) {
    const auto name = report::lra_name(record.name);
    if (!name) continue;
    auto entry = std::ranges::find(entries, *name, &LraEntry::name);
    if (entry == entries.end()) entry = entries.insert(entries.end(), LraEntry{{}, *name});
    entry->runs.push_back(&record);
  }
  return entries;
}

std::string percent(double share) {
  return std::isnan(share) ? "-" : formatted("%.2f", 100 * share);
}

std::string percent(const Spread& spread) {
  return percent(spread.mean) +
         (spread.count > 1 ? formatted(" +-%.2f", 100 * spread.deviation) : "");
}

// What the paper does not have is not a number.
std::string accuracy(double paper) { return std::isnan(paper) ? "-" : formatted("%.2f", paper); }

/// The paper's numbers are of the test split; where ours are not, that is marked.
std::string difference(double test, double valid, double paper) {
  const bool tested = !std::isnan(test);
  const double ahead = 100 * (tested ? test : valid) - paper;
  return std::isnan(ahead) ? "-" : formatted("%+.2f%s", ahead, tested ? "" : " v");
}

std::vector<std::string> line_of(const LraEntry& entry) {
  const double paper =
      entry.name.tiny ? NAN : report::paper_accuracy(entry.name.task, entry.name.row).value_or(NAN);
  const Spread valid = entry.over_runs(&TrainingResult::best_metric);
  const Spread test = entry.over_runs(&TrainingResult::test_metric);
  std::vector<std::string> line = {
      entry.name.task, entry.name.row, entry.name.recipe, std::to_string(entry.counted().size()),
      percent(valid),  percent(test),  accuracy(paper),   difference(test.mean, valid.mean, paper)};
  std::ranges::move(entry.cost(), std::back_inserter(line));
  line.push_back(entry.state());
  return line;
}

/// Averages of the rows that have all tasks.
std::vector<std::vector<std::string>> average_lines(const std::vector<LraEntry>& entries) {
  struct Sum {
    double valid = 0, test = 0;
    size_t tasks = 0;
  };
  std::vector<LraName> order;
  std::map<std::string, Sum> sums;
  for (const LraEntry& entry : entries) {
    const LraName row{.row = entry.name.row, .recipe = entry.name.recipe, .tiny = entry.name.tiny};
    Sum& sum = sums[row.text()];
    if (sum.tasks++ == 0) order.push_back(row);
    sum.valid += entry.over_runs(&TrainingResult::best_metric).mean;
    sum.test += entry.over_runs(&TrainingResult::test_metric).mean;
  }
  std::vector<std::vector<std::string>> lines;
  for (const LraName& row : order) {
    const auto& [valid, test, tasks] = sums[row.text()];
    if (tasks != report::kLraTasks.size()) continue;
    const auto count = static_cast<double>(tasks);
    const double paper = row.tiny ? NAN : report::paper_average(row.row).value_or(NAN);
    lines.push_back({"average", row.row, row.recipe, "", percent(valid / count),
                     percent(test / count), accuracy(paper),
                     difference(test / count, valid / count, paper), "", "", "", ""});
  }
  return lines;
}

}  // namespace

std::string lra_table(const std::vector<Record>& records) {
  const std::vector<LraEntry> entries = lra_entries_of(records);
  if (entries.empty()) return "";
  std::vector<std::vector<std::string>> lines = {kHeading};
  for (const LraEntry& entry : entries) lines.push_back(line_of(entry));
  std::ranges::move(average_lines(entries), std::back_inserter(lines));
  const bool marked =
      std::ranges::any_of(lines, [](const auto& line) { return line[7].ends_with(" v"); });
  return markdown_table(lines, kLraNumbers) +
         (marked ? "\nv: the difference is that of the valid split; there is no test score\n" : "");
}

}  // namespace fmmformer::cli
