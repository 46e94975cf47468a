// SPDX-License-Identifier: Apache-2.0
// Where the time of training steps and evaluations goes.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string_view>

namespace fmmformer::train {

// kReplay: forward, backward and update at once, from a captured graph.
enum class StepPart { kData, kForward, kBackward, kUpdate, kReplay, kLog };
inline constexpr std::array<std::string_view, 6> kStepPartNames = {"data",   "forward", "backward",
                                                                   "update", "replay",  "log"};

/// Wall-clock time by part. On a GPU the parts are those of the thread that feeds it.
class StepClock {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr int64_t kWarmUpSteps = 5;  // memory, threads, graphs come to life: not counted

  StepClock() = default;

  /// Everything from here to the next call belongs to `part`.
  void begin(StepPart part) {
    end();
    current_ = static_cast<int>(part);
    since_ = Clock::now();
  }
  /// What follows belongs to no part: evaluation, checkpoints.
  void end() {
    if (current_ < 0) return;
    seconds_[static_cast<size_t>(current_)] += seconds_since(since_);
    current_ = -1;
  }
  void count_step(int64_t tokens) {
    end();
    ++steps_, tokens_ += tokens;
    if (!warm_ && steps_ == kWarmUpSteps) *this = StepClock(/*warm=*/true);
  }

  double seconds(StepPart part) const { return seconds_[static_cast<size_t>(part)]; }
  double total() const {
    double sum = 0;
    for (const double one : seconds_) sum += one;
    return sum;
  }
  int64_t steps() const { return steps_; }
  double seconds_per_step() const { return steps_ > 0 ? total() / static_cast<double>(steps_) : 0; }
  double tokens_per_second() const {
    return total() > 0 ? static_cast<double>(tokens_) / total() : 0;
  }

 private:
  explicit StepClock(bool warm) : warm_(warm) {}
  static double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  std::array<double, kStepPartNames.size()> seconds_{};
  int current_ = -1;
  Clock::time_point since_;
  int64_t steps_ = 0, tokens_ = 0;
  bool warm_ = false;
};

/// What scoring a batch costs. The first evaluation, in which graphs come to life, is not counted.
class EvaluationClock {
 public:
  void add(std::chrono::duration<double> elapsed, int64_t batches) {
    if (warm_) seconds_ += elapsed.count(), batches_ += batches;
    warm_ = true;
  }
  int64_t batches() const { return batches_; }
  double seconds_per_batch() const {
    return batches_ > 0 ? seconds_ / static_cast<double>(batches_) : 0;
  }

 private:
  double seconds_ = 0;
  int64_t batches_ = 0;
  bool warm_ = false;
};

}  // namespace fmmformer::train
