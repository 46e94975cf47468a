// SPDX-License-Identifier: Apache-2.0
// What the tables of `reproduce` have in common: a line for each experiment, its seeds together.
#pragma once

#include <string>
#include <vector>

#include "report/groups.h"
#include "report/record.h"

namespace fmmformer::cli {

/// The runs of one line.
struct RunsOfLine {
  std::vector<const report::Record*> runs;

  /// What counts: the finished runs, or all while there are none.
  std::vector<const report::Record*> counted() const;
  report::Spread over_runs(double report::TrainingResult::*value) const;

  /// ms/step, time and memory; "-" where unknown.
  std::vector<std::string> cost() const;
  /// "interrupted at step 70", "90 of 100 steps": of the runs that have not done all their steps.
  std::string state() const;
};

/// Lines of a table in Markdown, the first its heading, aligned for the eye. Columns from
/// `first` to before `after` are flush right.
struct NumberColumns {
  size_t first = 0, after = 0;
};
std::string markdown_table(const std::vector<std::vector<std::string>>& lines,
                           NumberColumns numbers);

}  // namespace fmmformer::cli
