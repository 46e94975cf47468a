// SPDX-License-Identifier: Apache-2.0
#include "cli/run_table.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>

#include "cli/formatted.h"
#include "cli/train_progress.h"

namespace fmmformer::cli {

using report::Record;
using report::TrainingResult;

namespace {

std::string memory_text(double bytes) {
  if (std::isnan(bytes)) return "-";
  const double mebibytes = bytes / kMebibyte;
  return mebibytes < 1000 ? formatted("%.0f MiB", mebibytes)
                          : formatted("%.2f GiB", mebibytes / 1024);
}

/// "" for a run that has done all its steps.
std::string state_of(const Record& run) {
  if (run.status != "finished") {
    return (run.status.empty() ? "unknown" : run.status) +
           formatted(" at step %.0f", std::isnan(run.result.steps) ? 0 : run.result.steps);
  }
  const auto planned = std::ranges::find(run.config, "train.steps", &report::ConfigLine::first);
  if (planned == run.config.end() || !(run.result.steps < std::atof(planned->second.c_str()))) {
    return "";
  }
  return formatted("%.0f of %s steps", run.result.steps, planned->second.c_str());
}

}  // namespace

std::vector<const Record*> RunsOfLine::counted() const {
  std::vector<const Record*> finished;
  std::ranges::copy_if(runs, std::back_inserter(finished),
                       [](const Record* run) { return run->status == "finished"; });
  return finished.empty() ? runs : finished;
}

report::Spread RunsOfLine::over_runs(double TrainingResult::*value) const {
  std::vector<double> values;
  for (const Record* run : counted()) values.push_back(run->result.*value);
  return report::spread_of(values);
}

std::vector<std::string> RunsOfLine::cost() const {
  const double step = over_runs(&TrainingResult::seconds_per_step).mean;
  const double seconds = over_runs(&TrainingResult::seconds).mean;
  return {std::isnan(step) ? "-" : formatted("%.2f", 1e3 * step),
          std::isnan(seconds) ? "-" : duration_text(seconds),
          memory_text(over_runs(&TrainingResult::peak_bytes).mean)};
}

std::string RunsOfLine::state() const {
  std::string text;
  for (const Record* run : runs) {
    const std::string own = state_of(*run);
    if (own.empty()) continue;
    text += (text.empty() ? "" : "; ") + own;
    if (run->seed && runs.size() > 1) text += ", seed " + std::to_string(*run->seed);
  }
  return text;
}

std::string markdown_table(const std::vector<std::vector<std::string>>& lines,
                           NumberColumns numbers) {
  const auto is_number = [&](size_t i) { return i >= numbers.first && i < numbers.after; };
  const size_t columns = lines.front().size();
  std::vector<std::vector<std::string>> all = lines;
  std::vector<std::string> rule(columns, "--");
  for (size_t i = numbers.first; i < numbers.after; ++i) rule[i] = "--:";
  all.insert(all.begin() + 1, rule);
  std::vector<size_t> widths(columns, 0);
  for (const auto& line : all) {
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string text;
  for (const auto& line : all) {
    for (size_t i = 0; i < line.size(); ++i) {
      const std::string space(widths[i] - line[i].size(), line[i].starts_with("--") ? '-' : ' ');
      text += "| " + (is_number(i) ? space + line[i] : line[i] + space) + " ";
    }
    text += "|\n";
  }
  return text;
}

}  // namespace fmmformer::cli
