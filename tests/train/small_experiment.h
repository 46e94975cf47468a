// SPDX-License-Identifier: Apache-2.0
// An experiment that takes a moment, and what tests ask of its runs.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "train/experiment.h"

namespace fmmformer::train {

inline constexpr const char* kSmallConfig = R"(
name = "small"
[task.copy]
length = 16
symbols = 4
[model]
dim = 16
layers = 2
heads = 2
ffn_dim = 32
[model.attention]
causal = true
bandwidth = 3
feature_maps = ["elu", "elu_flip"]
dropout = 0.1
[model.attention.blend]
rule = "copy"
[train]
steps = 40
batch_size = 4
log_every = 3
evaluate_every = 15
evaluation_batches = 2
checkpoint_every = 10
[optimizer]
kind = "radam"
weight_decay = 0.01
clip_tensor = 1
)";

inline ExperimentConfig small_experiment(const std::vector<std::string>& overrides = {}) {
  return parse_experiment(kSmallConfig, "small.toml", overrides);
}

}  // namespace fmmformer::train
