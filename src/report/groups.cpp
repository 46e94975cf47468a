// SPDX-License-Identifier: Apache-2.0
#include "report/groups.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace fmmformer::report {
namespace {

using Series = std::vector<std::pair<double, double>>;  // step and value, by step, all known

Series known_points(const Curve& curve, double CurvePoint::*value) {
  Series series;
  for (const CurvePoint& point : curve) {
    if (!std::isnan(point.*value)) series.emplace_back(point.step, point.*value);
  }
  return series;
}

/// kUnknown outside the series.
double value_at(const Series& series, double step) {
  const auto next = std::ranges::lower_bound(series, step, {}, &Series::value_type::first);
  if (next == series.end()) return kUnknown;
  if (next->first == step) return next->second;
  if (next == series.begin()) return kUnknown;
  const auto [left, left_value] = *std::prev(next);
  const double share = (step - left) / (next->first - left);
  return left_value + share * (next->second - left_value);
}

}  // namespace

Spread spread_of(std::span<const double> values) {
  Spread spread;
  double sum = 0;
  for (const double value : values) {
    if (std::isnan(value)) continue;
    sum += value;
    spread.low = spread.count == 0 ? value : std::min(spread.low, value);
    spread.high = spread.count == 0 ? value : std::max(spread.high, value);
    ++spread.count;
  }
  if (spread.count == 0) return spread;
  spread.mean = sum / static_cast<double>(spread.count);
  if (spread.count < 2) return spread;
  double squares = 0;
  for (const double value : values) {
    if (!std::isnan(value)) squares += (value - spread.mean) * (value - spread.mean);
  }
  spread.deviation = std::sqrt(squares / static_cast<double>(spread.count - 1));
  return spread;
}

SpreadCurve spread_curve(std::span<const Curve* const> curves, double CurvePoint::*value) {
  std::vector<Series> seeds;
  std::set<double> steps;
  for (const Curve* curve : curves) {
    seeds.push_back(known_points(*curve, value));
    for (const auto& point : seeds.back()) steps.insert(point.first);
  }
  SpreadCurve spread;
  std::vector<double> values(seeds.size());
  for (const double step : steps) {
    std::ranges::transform(seeds, values.begin(),
                           [&](const Series& seed) { return value_at(seed, step); });
    spread.push_back({step, spread_of(values)});
  }
  return spread;
}

SpreadCurve thinned(const SpreadCurve& curve, int64_t most) {
  const auto size = static_cast<int64_t>(curve.size());
  if (size <= most || most < 2) return curve;
  SpreadCurve kept;
  for (int64_t i = 0; i < most; ++i) {
    kept.push_back(curve[static_cast<size_t>(i * (size - 1) / (most - 1))]);
  }
  return kept;
}

std::vector<Group> group_runs(const std::vector<Record>& records) {
  std::vector<Group> groups;
  for (const Record& record : records) {
    if (record.kind != RecordKind::kTraining) continue;
    auto group = std::ranges::find_if(groups, [&](const Group& candidate) {
      return candidate.name == record.group && candidate.task == record.task;
    });
    if (group == groups.end()) {
      group = groups.insert(groups.end(), Group{.name = record.group, .task = record.task});
    }
    group->runs.push_back(&record);
  }
  return groups;
}

Spread spread_of(const Group& group, double TrainingResult::*value) {
  std::vector<double> values;
  for (const Record* run : group.runs) values.push_back(run->result.*value);
  return spread_of(values);
}

}  // namespace fmmformer::report
