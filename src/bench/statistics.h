// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <vector>

namespace fmmformer::bench {

/// A set of durations in seconds. The median and the quartiles do not move when another program
/// gets in the way of a few of the runs, as a mean would.
struct Timing {
  double median = 0;
  double lower = 0;  // first quartile
  double upper = 0;  // third quartile
  double best = 0;
  int repeats = 0;

  /// Half the distance between the quartiles, as a share of the median: "median +- spread".
  double spread() const { return median > 0 ? (upper - lower) / (2 * median) : 0; }

  /// The same a run, where each duration was that of several runs in a row.
  Timing per_run(int runs_in_a_row) const;
};

struct TimingPlan {
  double warm_up_seconds =
      0.2;  // or one run, whichever is longer: first runs fault pages in and wake threads
  double seconds = 1.5;  // per candidate
  int runs_per_turn = 3;
  int minimum_repeats = 5;  // 2 for work so slow that these would take over 5 times `seconds`
  int maximum_repeats = 400;
};

/// Median and quartiles (linear interpolation) of durations that need not be sorted. Throws for an
/// empty set.
Timing summarise(std::vector<double> durations);

using Work = std::function<void()>;

/// Runs a piece of work once and says how many seconds it took.
using Clock = std::function<double(const Work&)>;
double seconds_of(const Work& work);  // by this machine's own clock

/// Times several pieces of work side by side: they take turns, so that whatever else happens on the
/// machine hits all alike. A turn is one run that does not count and a few that do: caches and
/// freed memory are then the candidate's own, as in a program that runs nothing else. A candidate
/// leaves the rounds when it has its minimum of repeats and its time is spent. Results are in the
/// order of `candidates`.
std::vector<Timing> time_in_turns(std::span<const Work> candidates, const TimingPlan& plan,
                                  const Clock& clock = seconds_of);

}  // namespace fmmformer::bench
