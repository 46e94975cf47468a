// SPDX-License-Identifier: Apache-2.0
#include "cli/wikitext_table.h"

#include <algorithm>
#include <cmath>

#include "cli/formatted.h"
#include "cli/run_table.h"
#include "report/wikitext.h"

namespace fmmformer::cli {
namespace {

using report::PaperPerplexity;
using report::Record;
using report::Spread;
using report::TrainingResult;

struct WikitextEntry : RunsOfLine {
  const PaperPerplexity* paper = nullptr;

  Spread valid() const { return over_runs(&TrainingResult::best_metric); }
  Spread test() const { return over_runs(&TrainingResult::test_metric); }
};

std::vector<WikitextEntry> wikitext_entries_of(const std::vector<Record>& records,
                                               const std::string& data) {
  std::vector<WikitextEntry> entries;
  for (const PaperPerplexity& row : report::kPaperPerplexities) {
    WikitextEntry entry;
    entry.paper = &row;
    for (const Record& record : records) {
      if (record.name == data + "/" + std::string(row.row)) entry.runs.push_back(&record);
    }
    if (!entry.runs.empty()) entries.push_back(std::move(entry));
  }
  return entries;
}

std::string perplexity(const Spread& spread) {
  if (std::isnan(spread.mean)) return "-";
  return formatted("%.2f", spread.mean) +
         (spread.count > 1 ? formatted(" +-%.2f", spread.deviation) : "");
}

/// 1 for the lowest; "-" for an unknown one.
std::string place(double own, const std::vector<double>& all) {
  if (std::isnan(own)) return "-";
  const auto better = std::ranges::count_if(all, [&](double other) { return other < own; });
  return std::to_string(better + 1);
}

std::vector<std::string> heading(const std::string& data) {
  const std::string paper = data == "wikitext103" ? "paper" : "paper on WikiText-103";
  return {"model",       "parameters",   "seeds",   "valid", "test",   "place", paper + ": valid",
          "paper: test", "paper: place", "ms/step", "time",  "memory", "state"};
}
constexpr NumberColumns kWikitextNumbers = {.first = 1, .after = 12};

}  // namespace

std::string wikitext_table(const std::vector<Record>& records, const std::string& data) {
  const std::vector<WikitextEntry> entries = wikitext_entries_of(records, data);
  if (entries.empty()) return "";
  std::vector<double> ours, papers;
  for (const WikitextEntry& entry : entries) {
    ours.push_back(entry.test().mean), papers.push_back(entry.paper->test);
  }
  std::vector<std::vector<std::string>> lines = {heading(data)};
  for (const WikitextEntry& entry : entries) {
    const double parameters = entry.runs.front()->parameters;
    std::vector<std::string> line = {std::string(entry.paper->row),
                                     std::isnan(parameters) ? "-" : formatted("%.0f", parameters),
                                     std::to_string(entry.counted().size()),
                                     perplexity(entry.valid()),
                                     perplexity(entry.test()),
                                     place(entry.test().mean, ours),
                                     formatted("%.2f", entry.paper->valid),
                                     formatted("%.2f", entry.paper->test),
                                     place(entry.paper->test, papers)};
    std::ranges::move(entry.cost(), std::back_inserter(line));
    line.push_back(entry.state());
    lines.push_back(std::move(line));
  }
  return markdown_table(lines, kWikitextNumbers);
}

}  // namespace fmmformer::cli
