// SPDX-License-Identifier: Apache-2.0
// What is counted about generated examples: a number for each, and in which bin of a histogram it
// falls. The same histograms of the published generators' files are in generator_reference.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "tasks/listops_generator.h"
#include "tasks/pathfinder/paint.h"
#include "tasks/pathfinder/scene.h"

namespace fmmformer::tasks::testing {

/// Bins of equal width from `first` on; the outermost also hold what lies beyond.
struct Bins {
  double first = 0, width = 1;
  int count = 1;

  size_t bin_of(double value) const {
    return static_cast<size_t>(std::clamp(std::floor((value - first) / width), 0.0, count - 1.0));
  }
};

template <typename Example>
struct Statistic {
  std::string_view name;
  Bins bins;
  double (*of)(const Example&);
};

struct PathfinderPicture {
  pathfinder::Scene scene;
  pathfinder::Pixels pixels;
};

const std::vector<Statistic<ListOpsExample>>& listops_statistics();
const std::vector<Statistic<PathfinderPicture>>& pathfinder_statistics();

using Histogram = std::vector<int>;

/// One histogram for each statistic.
template <typename Example>
class Histograms {
 public:
  explicit Histograms(const std::vector<Statistic<Example>>& statistics) : statistics_(statistics) {
    for (const auto& statistic : statistics) {
      counts_.emplace_back(static_cast<size_t>(statistic.bins.count));
    }
  }

  void add(const Example& example) {
    for (size_t i = 0; i < counts_.size(); ++i) {
      ++counts_[i][statistics_[i].bins.bin_of(statistics_[i].of(example))];
    }
  }

  const Histogram& operator[](size_t statistic) const { return counts_[statistic]; }
  size_t size() const { return counts_.size(); }

 private:
  const std::vector<Statistic<Example>>& statistics_;
  std::vector<Histogram> counts_;
};

/// How far two histograms of independent examples differ, in standard deviations of what chance
/// does to two of the same distribution: Pearson's chi-squared, less its mean, over its deviation.
/// Bins with fewer than ten examples in both together count as one with the next.
double surprise(const Histogram& a, const Histogram& b);

/// How often the better guess of a binary label is right for one who knows the bin. Histograms of
/// joint statistics hold the label's bins one after the other: first those of 0, then those of 1.
double best_guess(const Histogram& joint);

}  // namespace fmmformer::tasks::testing
