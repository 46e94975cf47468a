// SPDX-License-Identifier: Apache-2.0
#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>
#include <string>

namespace fmmformer::train {
namespace {

double share_of(int64_t part, int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

ScheduledUpdate one_cycle(const ScheduleConfig& config, int64_t update, int64_t updates) {
  const double start = config.learning_rate / config.start_divisor;
  const double end = start / config.end_divisor;
  const double high = config.cycle_beta1 ? config.beta1_high : config.beta1;
  const double low = config.cycle_beta1 ? config.beta1_low : config.beta1;
  const int64_t peak = std::max<int64_t>(config.warmup - 1, 0);
  const int64_t last = std::max(updates - 1, peak);
  if (update < peak) {
    const double share = share_of(update, peak);
    return {std::lerp(start, config.learning_rate, share), std::lerp(high, low, share)};
  }
  const double share = last == peak ? 0.0 : share_of(std::min(update, last) - peak, last - peak);
  return {std::lerp(config.learning_rate, end, share), std::lerp(low, high, share)};
}

double step_decay(const ScheduleConfig& config, int64_t update) {
  const auto passed = std::count_if(config.decay_after.begin(), config.decay_after.end(),
                                    [&](int64_t after) { return after <= update; });
  return config.learning_rate * std::pow(config.decay_factor, static_cast<double>(passed));
}

double cosine(const ScheduleConfig& config, int64_t update, int64_t updates) {
  if (config.first_at_peak && update == 0) return config.learning_rate;
  if (update < config.warmup) {
    const int64_t reached = config.first_at_peak ? update : update + 1;
    return config.learning_rate * share_of(reached, config.warmup);
  }
  const double share = share_of(std::min(update, updates), std::max<int64_t>(updates, 1));
  return config.learning_rate * 0.5 * (1 + std::cos(std::numbers::pi * share));
}

}  // namespace

ScheduledUpdate scheduled_update(const ScheduleConfig& config, int64_t update, int64_t updates) {
  switch (config.kind) {
    case ScheduleKind::kOneCycle:
      return one_cycle(config, update, updates);
    case ScheduleKind::kStepDecay:
      return {step_decay(config, update), config.beta1};
    case ScheduleKind::kCosine:
      return {cosine(config, update, updates), config.beta1};
    case ScheduleKind::kConstant:
      break;
  }
  return {config.learning_rate, config.beta1};
}

bool spans_the_run(ScheduleKind kind) {
  return kind == ScheduleKind::kOneCycle || kind == ScheduleKind::kCosine;
}

void check_schedule(const ScheduleConfig& config, int64_t updates) {
  const bool warms_up =
      config.kind == ScheduleKind::kOneCycle || config.kind == ScheduleKind::kCosine;
  if (warms_up && config.warmup > updates) {
    throw std::invalid_argument("schedule.warmup is " + std::to_string(config.warmup) +
                                ", the run has " + std::to_string(updates) +
                                " updates; shorten the warm-up or lengthen the run");
  }
}

}  // namespace fmmformer::train
