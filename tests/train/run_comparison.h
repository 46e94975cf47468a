// SPDX-License-Identifier: Apache-2.0
// Somebody who watches a run, and what two runs are compared by.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "train/checkpoint_store.h"
#include "train/progress.h"
#include "train/run_log.h"
#include "train/tensor_file.h"

namespace fmmformer::train {

/// Remembers what it hears; does something at one step.
struct Watcher : TrainListener {
  std::function<void()> at_step = [] {};
  int64_t step_of_action = -1;
  std::vector<std::string> notes;
  std::vector<int64_t> saved_steps;

  void stepped(const StepReport& report) override {
    if (report.step == step_of_action) at_step();
  }
  void saved(int64_t step, const std::string&) override { saved_steps.push_back(step); }
  void noticed(const std::string& text) override { notes.push_back(text); }
};

inline std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The metrics without what depends on the clock.
inline std::vector<std::string> metrics_of(const std::filesystem::path& run) {
  std::vector<std::string> lines;
  for (auto line : read_run_log(run / "metrics.jsonl")) {
    line.erase("tokens_per_second");
    lines.push_back(line.dump());
  }
  return lines;
}

inline NamedTensors last_weights(const std::filesystem::path& run) {
  const CheckpointStore store(run / "checkpoints", StoreAccess::kRead);
  return tensors_of(store.load(*store.latest(), CheckpointParts::kModel).model);
}

inline void expect_same_weights(const std::filesystem::path& a, const std::filesystem::path& b) {
  const NamedTensors first = last_weights(a), second = last_weights(b);
  ASSERT_EQ(first.size(), second.size());
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(first[i].first, second[i].first);
    EXPECT_TRUE(at::equal(first[i].second, second[i].second)) << first[i].first;
  }
}

}  // namespace fmmformer::train
