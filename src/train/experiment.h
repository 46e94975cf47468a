// SPDX-License-Identifier: Apache-2.0
// One experiment: everything that a TOML file under configs/ can say, and nothing else decides what
// a run computes.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fmmformer/core/config.h"
#include "fmmformer/models/model_config.h"
#include "tasks/config.h"
#include "tasks/task.h"
#include "train/optimizer_config.h"
#include "train/schedule.h"

namespace fmmformer::train {

enum class Precision {
  kFp32,
  kBf16,  // the model computes in bf16, the optimizer advances fp32 master weights
};

struct TrainConfig {
  int64_t seed = 1;
  int64_t steps = 10'000;
  int64_t batch_size = 64;
  int64_t accumulate = 1;
  Precision precision = Precision::kFp32;
  bool tf32 = false;
  bool cuda_graph = true;
  int64_t log_every = 10;
  int64_t evaluate_every = 100;
  int64_t evaluation_batches = 20;
  bool test = false;
  int64_t checkpoint_every = 500;
  int64_t keep_checkpoints = 2;
  int64_t prefetch_threads = 1;

  static void fields(auto& self, auto&& visit) {
    visit("seed", self.seed, Range{.low = 0}, "all randomness follows from it");
    visit("steps", self.steps, Range{.low = 1}, "optimizer steps");
    visit("batch_size", self.batch_size, Range{.low = 1}, "examples a step");
    visit("accumulate", self.accumulate, Range{.low = 1},
          "a step's batch is computed in this many parts, for less memory; must divide batch_size");
    visit("precision", self.precision, "fp32, or bf16 with fp32 master weights");
    visit("tf32", self.tf32,
          "fp32 matrix products of a GPU round their factors to 10 bits: faster, far less exact");
    visit("cuda_graph", self.cuda_graph,
          "a GPU repeats the whole step from a captured graph, where shapes and model allow it; "
          "changes nothing but speed");
    visit("log_every", self.log_every, Range{.low = 1}, "steps between lines of metrics.jsonl");
    visit("evaluate_every", self.evaluate_every, Range{.low = 1}, "steps between evaluations");
    visit("evaluation_batches", self.evaluation_batches, Range{.low = 0},
          "batches of an evaluation; 0: the whole split");
    visit("test", self.test,
          "at the end, score the best checkpoint on the test split, where there is one");
    visit("checkpoint_every", self.checkpoint_every, Range{.low = 1}, "steps between checkpoints");
    visit("keep_checkpoints", self.keep_checkpoints, Range{.low = 1},
          "how many of the last ones stay, beside the best");
    visit("prefetch_threads", self.prefetch_threads, Range{0, 64},
          "threads that prepare batches; changes nothing but speed");
  }
};

inline constexpr int64_t kConfigFormat = 1;

struct ExperimentConfig {
  int64_t format = kConfigFormat;
  std::string name;
  std::string about;
  std::string reproduces;
  tasks::TaskConfig task;
  ModelConfig model;
  TrainConfig train;
  OptimizerConfig optimizer;
  ScheduleConfig schedule;

  static void fields(auto& self, auto&& visit) {
    visit("format", self.format, Range{1, static_cast<double>(kConfigFormat)},
          "version of this kind of file");
    visit("name", self.name, "what tables and reports call it");
    visit("about", self.about, "one sentence");
    visit("reproduces", self.reproduces, "which figure or table of the paper; empty: none");
    visit("task", self.task, "where examples come from");
    visit("model", self.model, "what is trained");
    visit("train", self.train, "how long, on how much, how often it is looked at");
    visit("optimizer", self.optimizer, "how weights move");
    visit("schedule", self.schedule, "learning rate and beta1 over the steps");
  }
};

/// Reads a file with overrides ("a.b=c"). Vocabulary, classes and longest sequence follow from the
/// task where the file does not name them. Throws ConfigError that names file, line and key for
/// anything that is wrong, parts that do not fit each other included.
ExperimentConfig load_experiment(const std::filesystem::path& path,
                                 const std::vector<std::string>& overrides = {});

/// The same from the config.toml of a run, whose vocabulary is settled: the data of a text is not
/// opened, so that the model can be had where that has moved (run_vocabulary.h compares them).
ExperimentConfig load_run_experiment(const std::filesystem::path& path,
                                     const std::vector<std::string>& overrides = {});

/// The same from text; `source` is what errors call it.
ExperimentConfig parse_experiment(std::string_view text, std::string_view source,
                                  const std::vector<std::string>& overrides = {});

/// All fields, resolved: load_experiment gives the same experiment back.
std::string experiment_toml(const ExperimentConfig& experiment);

struct ConfigDifference {
  std::string key;            // "model.attention.bandwidth"
  std::string first, second;  // its values as JSON; "left out" where there is none
};

/// In what two experiments compute differently: their names and descriptions do not count.
std::vector<ConfigDifference> differences(const ExperimentConfig& first,
                                          const ExperimentConfig& second);

}  // namespace fmmformer::train

template <>
struct fmmformer::EnumTable<fmmformer::train::Precision> {
  static constexpr std::string_view kKind = "precision";
  static std::span<const EnumName<train::Precision>> entries() {
    static constexpr std::array<EnumName<train::Precision>, 2> kEntries = {
        {{train::Precision::kFp32, "fp32"}, {train::Precision::kBf16, "bf16"}}};
    return kEntries;
  }
};
