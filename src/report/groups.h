// SPDX-License-Identifier: Apache-2.0
// Runs that differ in their seed alone, taken together.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "report/record.h"

namespace fmmformer::report {

/// Several measurements of one thing; unknown values do not count. With none, all is kUnknown.
struct Spread {
  double mean = kUnknown;
  double deviation = kUnknown;  // sample standard deviation; kUnknown for fewer than two values
  double low = kUnknown;
  double high = kUnknown;
  int64_t count = 0;
};
Spread spread_of(std::span<const double> values);

struct SpreadPoint {
  double step = kUnknown;
  Spread value;
};
using SpreadCurve = std::vector<SpreadPoint>;

/// The curves of several seeds as one, at every step that any of them has. A seed counts between
/// its first and its last point, interpolated linearly where it has no point of its own.
SpreadCurve spread_curve(std::span<const Curve* const> curves, double CurvePoint::*value);

/// At most `most` points, evenly chosen; the first and the last always stay.
SpreadCurve thinned(const SpreadCurve& curve, int64_t most);

/// The training runs of one task that differ in their seed alone, or in what changes nothing that
/// they learn (how often they are saved, where their data lies), in the order given.
struct Group {
  std::string name;  // the runs' own, and what tells groups of the same name apart
  std::string task;
  std::vector<const Record*> runs;
};
std::vector<Group> group_runs(const std::vector<Record>& records);

/// One number of a result over the runs of a group.
Spread spread_of(const Group& group, double TrainingResult::*value);

}  // namespace fmmformer::report
