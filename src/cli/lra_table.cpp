// SPDX-License-Identifier: Apache-2.0
#include "cli/lra_table.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "cli/formatted.h"
#include "cli/train_progress.h"
#include "report/groups.h"
#include "report/lra.h"

namespace fmmformer::cli {
namespace {

using report::LraName;
using report::Record;
using report::Spread;
using report::TrainingResult;

constexpr double kMebibyte = 1024.0 * 1024.0;
const std::vector<std::string> kHeading = {"task",    "model", "recipe", "seeds",
                                           "valid",   "test",  "paper",  "difference",
                                           "ms/step", "time",  "memory", "state"};
constexpr size_t kFirstNumber = 3, kAfterNumbers = 11;  // columns that are flush right

/// The runs of one line.
struct Entry {
  LraName name;
  std::vector<const Record*> runs;

  /// What counts: the finished runs, or all while there are none.
  std::vector<const Record*> counted() const {
    std::vector<const Record*> finished;
    std::ranges::copy_if(runs, std::back_inserter(finished),
                         [](const Record* run) { return run->status == "finished"; });
    return finished.empty() ? runs : finished;
  }
  Spread over_runs(double TrainingResult::*value) const {
    std::vector<double> values;
    for (const Record* run : counted()) values.push_back(run->result.*value);
    return report::spread_of(values);
  }
};

std::vector<Entry> entries_of(const std::vector<Record>& records) {
  std::vector<Entry> entries;
  for (const Record& record : records) {
    const auto name = report::lra_name(record.name);
    if (!name) continue;
    auto entry = std::ranges::find(entries, *name, &Entry::name);
    if (entry == entries.end()) entry = entries.insert(entries.end(), Entry{.name = *name});
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

std::string accuracy(const std::optional<double>& paper) {
  return paper ? formatted("%.2f", *paper) : "-";
}

/// The paper's numbers are of the test split; where ours are not, that is marked.
std::string difference(double test, double valid, const std::optional<double>& paper) {
  const bool tested = !std::isnan(test);
  if (!paper || (!tested && std::isnan(valid))) return "-";
  return formatted("%+.2f%s", 100 * (tested ? test : valid) - *paper, tested ? "" : " v");
}

std::string memory_text(double bytes) {
  if (std::isnan(bytes)) return "-";
  const double mebibytes = bytes / kMebibyte;
  return mebibytes < 1000 ? formatted("%.0f MiB", mebibytes)
                          : formatted("%.2f GiB", mebibytes / 1024);
}

std::string state_text(const Entry& entry) {
  std::string text;
  for (const Record* run : entry.runs) {
    if (run->status == "finished") continue;
    text += (text.empty() ? "" : "; ") + (run->status.empty() ? "unknown" : run->status) +
            formatted(" at step %.0f", std::isnan(run->result.steps) ? 0 : run->result.steps);
    if (run->seed && entry.runs.size() > 1) text += ", seed " + std::to_string(*run->seed);
  }
  return text;
}

std::vector<std::string> line_of(const Entry& entry) {
  const auto paper =
      entry.name.tiny ? std::nullopt : report::paper_accuracy(entry.name.task, entry.name.row);
  const Spread valid = entry.over_runs(&TrainingResult::best_metric);
  const Spread test = entry.over_runs(&TrainingResult::test_metric);
  const double step = entry.over_runs(&TrainingResult::seconds_per_step).mean;
  const double seconds = entry.over_runs(&TrainingResult::seconds).mean;
  return {entry.name.task,
          entry.name.row,
          entry.name.recipe,
          std::to_string(entry.counted().size()),
          percent(valid),
          percent(test),
          accuracy(paper),
          difference(test.mean, valid.mean, paper),
          std::isnan(step) ? "-" : formatted("%.2f", 1e3 * step),
          std::isnan(seconds) ? "-" : duration_text(seconds),
          memory_text(entry.over_runs(&TrainingResult::peak_bytes).mean),
          state_text(entry)};
}

/// Averages of the rows that have all tasks.
std::vector<std::vector<std::string>> average_lines(const std::vector<Entry>& entries) {
  struct Sum {
    double valid = 0, test = 0;
    size_t tasks = 0;
  };
  std::vector<LraName> order;
  std::map<std::string, Sum> sums;
  for (const Entry& entry : entries) {
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
    const auto paper = row.tiny ? std::nullopt : report::paper_average(row.row);
    lines.push_back({"average", row.row, row.recipe, "", percent(valid / count),
                     percent(test / count), accuracy(paper),
                     difference(test / count, valid / count, paper), "", "", "", ""});
  }
  return lines;
}

std::string aligned(const std::vector<std::vector<std::string>>& lines) {
  std::vector<size_t> widths(kHeading.size(), 0);
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string text;
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) {
      const std::string space(widths[i] - line[i].size(), line[i].starts_with("--") ? '-' : ' ');
      const bool right = i >= kFirstNumber && i < kAfterNumbers;
      text += "| " + (right ? space + line[i] : line[i] + space) + " ";
    }
    text += "|\n";
  }
  return text;
}

}  // namespace

std::string lra_table(const std::vector<Record>& records) {
  const std::vector<Entry> entries = entries_of(records);
  if (entries.empty()) return "";
  std::vector<std::vector<std::string>> lines = {kHeading};
  std::vector<std::string> rule(kHeading.size(), "--");
  for (size_t i = kFirstNumber; i < kAfterNumbers; ++i) rule[i] = "--:";
  lines.push_back(rule);
  for (const Entry& entry : entries) lines.push_back(line_of(entry));
  std::ranges::move(average_lines(entries), std::back_inserter(lines));
  const bool marked =
      std::ranges::any_of(lines, [](const auto& line) { return line[7].ends_with(" v"); });
  return aligned(lines) +
         (marked ? "\nv: the difference is that of the valid split; there is no test score\n" : "");
}

}  // namespace fmmformer::cli
