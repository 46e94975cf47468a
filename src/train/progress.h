// SPDX-License-Identifier: Apache-2.0
// What a training run tells whoever watches it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fmmformer::train {

/// What is measured beside the loss, and which way is up.
struct Metric {
  std::string_view name = "accuracy";
  std::string_view unit = "%";
  bool higher_is_better = true;

  bool is_better(double a, double b) const { return higher_is_better ? a > b : a < b; }
};

struct StepReport {
  int64_t step = 0;  // steps done
  int64_t steps = 0;
  double loss = 0;  // the last one known
  double tokens_per_second = 0;
  double seconds_left = 0;
};

struct MetricReport {
  int64_t step = 0;
  std::string_view split;  // train, valid, test
  double loss = 0;
  double metric = 0;
  double learning_rate = 0;  // train only
  double tokens_per_second = 0;
  bool is_best = false;
};

/// Override what is of interest; all calls come from the training thread.
class TrainListener {
 public:
  virtual ~TrainListener() = default;
  /// Before the first step; `first_step` > 0 when resumed.
  virtual void started(int64_t /*parameters*/, int64_t /*first_step*/, const Metric&) {}
  virtual void stepped(const StepReport&) {}
  virtual void evaluating(int64_t /*done*/, int64_t /*all*/) {}
  virtual void measured(const MetricReport&) {}
  virtual void saved(int64_t /*step*/, const std::string& /*path*/) {}
  /// Something the user should know and that is no error.
  virtual void noticed(const std::string&) {}
};

}  // namespace fmmformer::train
