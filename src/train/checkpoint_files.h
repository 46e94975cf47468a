// SPDX-License-Identifier: Apache-2.0
// One checkpoint's folder: its files and the state.json that vouches for them.
#pragma once

#include <filesystem>

#include "train/checkpoint_store.h"

namespace fmmformer::train {

inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr const char* kOptimizerFile = "optimizer.safetensors";
inline constexpr const char* kStateFile = "state.json";

/// state.json as read and found intact.
struct CheckpointState {
  bool best = false;
  Json files;
  Json state;
};

/// Writes all files of a checkpoint into an existing, empty folder and syncs them.
void write_checkpoint_files(const std::filesystem::path& folder, int64_t step,
                            const CheckpointContent& content);

/// Both throw std::invalid_argument or std::runtime_error that say what is wrong.
CheckpointState read_checkpoint_state(const std::filesystem::path& folder, int64_t step);
void check_checkpoint_file(const std::filesystem::path& folder, const CheckpointState& state,
                           const char* file);

}  // namespace fmmformer::train
