// SPDX-License-Identifier: Apache-2.0
#include "report/scaling.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace fmmformer::report {

std::optional<Growth> growth_of(const ScalingSeries& series, double ScalingPoint::*value) {
  std::vector<std::pair<double, double>> points;
  for (const ScalingPoint& point : series.points) {
    if (point.*value > 0) points.emplace_back(std::log(point.length), std::log(point.*value));
  }
  if (points.size() < 2) return std::nullopt;
  const size_t used = std::max<size_t>(2, (points.size() + 1) / 2);
  points.erase(points.begin(), points.end() - static_cast<std::ptrdiff_t>(used));
  double mean_x = 0, mean_y = 0;
  for (const auto& [x, y] : points) {
    mean_x += x / static_cast<double>(used);
    mean_y += y / static_cast<double>(used);
  }
  double covariance = 0, variance = 0;
  for (const auto& [x, y] : points) {
    covariance += (x - mean_x) * (y - mean_y);
    variance += (x - mean_x) * (x - mean_x);
  }
  if (!(variance > 0)) return std::nullopt;
  return Growth{.exponent = covariance / variance,
                .from = std::exp(points.front().first),
                .to = std::exp(points.back().first)};
}

std::optional<Saving> saving(const ScalingSeries& fast, const ScalingSeries& slow) {
  std::optional<Saving> longest;
  for (const ScalingPoint& point : fast.points) {
    const auto other = std::ranges::find(slow.points, point.length, &ScalingPoint::length);
    if (other == slow.points.end() || !(point.seconds > 0) || !(other->seconds > 0)) continue;
    longest = Saving{.fast = fast.name,
                     .slow = slow.name,
                     .length = point.length,
                     .time_ratio = other->seconds / point.seconds};
    if (point.peak_bytes > 0 && other->peak_bytes > 0) {
      longest->memory_ratio = other->peak_bytes / point.peak_bytes;
    }
  }
  return longest;
}

std::vector<Saving> fmm_savings(const std::vector<ScalingSeries>& series) {
  std::vector<Saving> savings;
  const auto softmax = std::ranges::find(series, "softmax", &ScalingSeries::attention);
  if (softmax == series.end()) return savings;
  for (const ScalingSeries& candidate : series) {
    if (candidate.attention != "fmm") continue;
    if (const auto one = saving(candidate, *softmax)) savings.push_back(*one);
  }
  return savings;
}

}  // namespace fmmformer::report
