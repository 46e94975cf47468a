// SPDX-License-Identifier: Apache-2.0
// What `data fetch` shows while it works.
#pragma once

#include <chrono>
#include <string>

#include "cli/live_line.h"
#include "tasks/fetch/listener.h"

namespace fmmformer::cli {

/// "set.gz  1.2 GB of 8.2 GB  34.1 MB/s  3 min 25 s left"; without a rate while it is not known.
std::string fetch_progress_text(const std::string& name, const tasks::fetch::Progress& progress,
                                double bytes_per_second);

/// A live line on a terminal, a plain line every few seconds in a pipe; notices on lines of their
/// own, in both.
class FetchProgress {
 public:
  explicit FetchProgress(std::string name) : name_(std::move(name)) {}
  FetchProgress(const FetchProgress&) = delete;
  FetchProgress& operator=(const FetchProgress&) = delete;
  ~FetchProgress() { live_.clear(); }

  /// For as long as this object lives.
  tasks::fetch::Listener listener();

 private:
  using Clock = std::chrono::steady_clock;

  void show(const tasks::fetch::Progress& progress);
  void print(const std::string& text) const;

  const std::string name_;
  const LiveLine live_;
  bool begun_ = false;
  tasks::fetch::Progress first_;  // of the present phase: a resumed download does not begin at 0
  Clock::time_point began_ = Clock::now();
  Clock::time_point shown_ = began_;
};

}  // namespace fmmformer::cli
