// SPDX-License-Identifier: Apache-2.0
// Learning rate and beta1 of every update: a pure function of the update's number, so that a
// resumed run needs no state for it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "fmmformer/core/fields.h"
#include "fmmformer/core/named_enum.h"

namespace fmmformer::train {

enum class ScheduleKind { kConstant, kStepDecay, kOneCycle, kCosine };

struct ScheduleConfig {
  ScheduleKind kind = ScheduleKind::kConstant;
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  int64_t warmup = 0;
  std::vector<int64_t> decay_after = {};
  double decay_factor = 0.1;
  double start_divisor = 25;
  double end_divisor = 1e4;
  bool cycle_beta1 = true;
  double beta1_high = 0.95;
  double beta1_low = 0.85;
  bool first_at_peak = false;

  static void fields(auto& self, auto&& visit) {
    visit("kind", self.kind, "constant, step_decay, one_cycle or cosine");
    visit("learning_rate", self.learning_rate, Range{.low = 0}, "the highest of the schedule");
    visit("beta1", self.beta1, Range{0, 0.999999}, "decay of the gradient's first moment");
    visit("warmup", self.warmup, Range{.low = 0},
          "updates until the peak (one_cycle, cosine); 0 = begin there");
    visit("decay_after", self.decay_after, Range{.low = 0},
          "step_decay: numbers of updates after which the rate falls");
    visit("decay_factor", self.decay_factor, Range{0, 1}, "step_decay: what it falls by each time");
    visit("start_divisor", self.start_divisor, Range{.low = 1},
          "one_cycle: begins at learning_rate / start_divisor");
    visit("end_divisor", self.end_divisor, Range{.low = 1},
          "one_cycle: ends at its begin / end_divisor");
    visit("cycle_beta1", self.cycle_beta1,
          "one_cycle: beta1 goes beta1_high, beta1_low (at the peak), beta1_high");
    visit("beta1_high", self.beta1_high, Range{0, 0.999999}, "one_cycle: beta1 at both ends");
    visit("beta1_low", self.beta1_low, Range{0, 0.999999}, "one_cycle: beta1 at the peak");
    visit("first_at_peak", self.first_at_peak,
          "cosine: the very first update runs at the full rate and the warm-up lags by one, as in "
          "the authors' language models");
  }
};

struct ScheduledUpdate {
  double learning_rate;
  double beta1;
};

/// The setting of update number `update` (from 0) of `updates` in all (T), W = warmup:
///   constant    learning_rate
///   step_decay  learning_rate * decay_factor^(how many of decay_after are <= update)
///   one_cycle   up linearly to the peak at update W - 1, then down linearly until T - 1
///   cosine      update < W: learning_rate * (update + 1) / W;
///               then learning_rate * (1 + cos(pi * update / T)) / 2
/// After the last update one_cycle and cosine stay where they ended.
ScheduledUpdate scheduled_update(const ScheduleConfig& config, int64_t update, int64_t updates);

/// Whether the rates depend on T.
bool spans_the_run(ScheduleKind kind);

/// Throws std::invalid_argument, naming both numbers, for a warm-up longer than the run.
void check_schedule(const ScheduleConfig& config, int64_t updates);

}  // namespace fmmformer::train

template <>
struct fmmformer::EnumTable<fmmformer::train::ScheduleKind> {
  static constexpr std::string_view kKind = "schedule";
  static std::span<const EnumName<train::ScheduleKind>> entries() {
    static constexpr std::array<EnumName<train::ScheduleKind>, 4> kEntries = {
        {{train::ScheduleKind::kConstant, "constant"},
         {train::ScheduleKind::kStepDecay, "step_decay"},
         {train::ScheduleKind::kOneCycle, "one_cycle"},
         {train::ScheduleKind::kCosine, "cosine"}}};
    return kEntries;
  }
};
