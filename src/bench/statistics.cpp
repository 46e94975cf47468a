// SPDX-License-Identifier: Apache-2.0
#include "bench/statistics.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <stdexcept>

namespace fmmformer::bench {
namespace {

double quantile(const std::vector<double>& sorted, double share) {
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(std::floor(place));
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const double part = place - static_cast<double>(below);
  return sorted[below] * (1 - part) + sorted[above] * part;
}

struct Candidate {
  std::vector<double> durations;
  double spent = 0;

  bool wants_more(const TimingPlan& plan) const {
    const int repeats = static_cast<int>(durations.size());
    if (repeats < plan.minimum_repeats) return repeats < 2 || spent < 5 * plan.seconds;
    return repeats < plan.maximum_repeats && spent < plan.seconds;
  }
};

}  // namespace

Timing Timing::per_run(int runs_in_a_row) const {
  const double share = 1.0 / runs_in_a_row;
  return {.median = median * share,
          .lower = lower * share,
          .upper = upper * share,
          .best = best * share,
          .repeats = repeats};
}

double seconds_of(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Timing summarise(std::vector<double> durations) {
  if (durations.empty())
    throw std::invalid_argument("summarise: no durations given, at least one is needed");
  std::ranges::sort(durations);
  return {.median = quantile(durations, 0.5),
          .lower = quantile(durations, 0.25),
          .upper = quantile(durations, 0.75),
          .best = durations.front(),
          .repeats = static_cast<int>(durations.size())};
}

std::vector<Timing> time_in_turns(std::span<const Work> candidates, const TimingPlan& plan,
                                  const Clock& clock) {
  for (const Work& work : candidates) {
    for (double spent = clock(work); spent < plan.warm_up_seconds;) spent += clock(work);
  }
  std::vector<Candidate> results(candidates.size());
  for (bool again = true; again;) {
    again = false;
    for (size_t i = 0; i < candidates.size(); ++i) {
      if (!results[i].wants_more(plan)) continue;
      again = true;
      clock(candidates[i]);  // the others' traces go
      for (int run = 0; run < plan.runs_per_turn && results[i].wants_more(plan); ++run) {
        results[i].durations.push_back(clock(candidates[i]));
        results[i].spent += results[i].durations.back();
      }
    }
  }
  std::vector<Timing> timings;
  for (Candidate& result : results) timings.push_back(summarise(std::move(result.durations)));
  return timings;
}

}  // namespace fmmformer::bench
