// SPDX-License-Identifier: Apache-2.0
// How cost grows with length, and how much less one method costs than another.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "report/record.h"

namespace fmmformer::report {

/// value ~ length^exponent: 1 is linear, 2 quadratic.
struct Growth {
  double exponent = kUnknown;
  double from = kUnknown;  // the lengths it was fitted to
  double to = kUnknown;
};

/// The least-squares slope on log-log axes over the longer half of the lengths (never fewer than
/// two): short ones show fixed costs rather than growth. Nothing when fewer than two lengths have a
/// positive value.
std::optional<Growth> growth_of(const ScalingSeries& series, double ScalingPoint::*value);

/// How many times less `fast` costs than `slow` at the longest length where both were timed.
struct Saving {
  std::string fast;
  std::string slow;
  double length = kUnknown;
  double time_ratio = kUnknown;
  double memory_ratio = kUnknown;  // kUnknown where memory was not measured
};
std::optional<Saving> saving(const ScalingSeries& fast, const ScalingSeries& slow);

/// Every series whose attention is "fmm" against the first one whose attention is "softmax".
std::vector<Saving> fmm_savings(const std::vector<ScalingSeries>& series);

}  // namespace fmmformer::report
