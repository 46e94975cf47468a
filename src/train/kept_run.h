// SPDX-License-Identifier: Apache-2.0
// What stays of a run when its folder goes: small enough to be kept beside the code.
//   model.safetensors   the weights of its best checkpoint
//   config.toml         as in the run's folder
//   record.json         the same, but for what is large: pictures, and the curve of training
// `eval`, `predict` and `report` take such a folder for the run's own.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>

namespace fmmformer::train {

/// Copies that of the run at `run` into the folder `to`, file by file in the place of what was
/// there. Throws std::invalid_argument when there is no run or no checkpoint, DamagedCheckpoint
/// when the best one is damaged, std::runtime_error when a file cannot be written.
void keep_run(const std::filesystem::path& run, const std::filesystem::path& to);

/// The record alone.
void keep_record(const std::filesystem::path& run, const std::filesystem::path& to);

/// A record without what is large, its measurements with five digits.
nlohmann::ordered_json compact_record(nlohmann::ordered_json record);

}  // namespace fmmformer::train
