// SPDX-License-Identifier: Apache-2.0
#include "report/groups.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string_view>
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

/// What decides what a run learns, by name. A seed does not, nor does what is merely kept, told or
/// found where.
using Settings = std::map<std::string, std::string>;

constexpr std::string_view kSeed = "train.seed";
bool is_bookkeeping(const std::string& key) {
  static constexpr std::array<std::string_view, 9> kKeys = {kSeed,
                                                            "format",
                                                            "about",
                                                            "reproduces",
                                                            "train.checkpoint_every",
                                                            "train.keep_checkpoints",
                                                            "train.log_every",
                                                            "train.prefetch_threads",
                                                            "train.cuda_graph"};
  return std::ranges::count(kKeys, key) > 0 || (key.starts_with("task.") && key.ends_with(".data"));
}

/// Nothing for a record that does not hold the whole config.
std::optional<Settings> settings_of(const Record& record) {
  Settings settings;
  bool is_whole = false;
  for (const auto& [key, value] : record.config) {
    is_whole |= key == kSeed;
    if (!is_bookkeeping(key)) settings[key] = value;
  }
  return is_whole ? std::optional(settings) : std::nullopt;
}

bool belong_together(const Record& a, const Record& b) {
  if (a.task != b.task) return false;
  const auto settings = settings_of(a), others = settings_of(b);
  if (!settings || !others) return a.group == b.group;
  return a.name == b.name && settings == others;
}

/// " train.steps=500 model.heads=4": of a group the settings, three at most, in which groups of the
/// same name differ.
std::string differences(const Group& group, const std::vector<Group>& groups) {
  const Record& first = *group.runs.front();
  const Settings own = settings_of(first).value();
  std::vector<Settings> others;
  for (const Group& other : groups) {
    const Record& one = *other.runs.front();
    const auto settings = settings_of(one);
    if (one.name == first.name && one.task == first.task && settings) others.push_back(*settings);
  }
  std::vector<std::string> differing;
  for (const auto& [key, value] : own) {
    const bool differs = std::ranges::any_of(others, [&](const Settings& settings) {
      const auto found = settings.find(key);
      return found == settings.end() || found->second != value;
    });
    if (differs) differing.push_back(key + "=" + value);
  }
  constexpr size_t kMost = 3;
  std::string text;
  for (size_t i = 0; i < std::min(differing.size(), kMost); ++i) text += " " + differing[i];
  const size_t rest = differing.size() - std::min(differing.size(), kMost);
  return rest == 0 ? text : text + " and " + std::to_string(rest) + " more";
}

/// Groups of one task that three settings do not tell apart: "x #2" for the second.
void number_equal_names(std::vector<Group>& groups) {
  std::map<std::pair<std::string, std::string>, int> seen;
  for (Group& group : groups) {
    const int count = ++seen[{group.task, group.name}];
    if (count > 1) group.name += " #" + std::to_string(count);
  }
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
      return belong_together(*candidate.runs.front(), record);
    });
    if (group == groups.end()) group = groups.insert(groups.end(), Group{.task = record.task});
    group->runs.push_back(&record);
  }
  for (Group& group : groups) {
    const Record& first = *group.runs.front();
    group.name = settings_of(first) ? first.name + differences(group, groups) : first.group;
  }
  number_equal_names(groups);
  return groups;
}

Spread spread_of(const Group& group, double TrainingResult::*value) {
  std::vector<double> values;
  for (const Record* run : group.runs) values.push_back(run->result.*value);
  return spread_of(values);
}

}  // namespace fmmformer::report
