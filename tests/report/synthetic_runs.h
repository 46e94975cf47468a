// SPDX-License-Identifier: Apache-2.0
// Records as a small study would leave them: three models, two seeds each, a scaling run, and the
// operator's timings on a GPU.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace fmmformer::report {

/// The least that is a record.
nlohmann::json minimal_record(const std::string& kind);

/// A training run of "fmm", "linear" or "softmax" on the copy task.
nlohmann::json synthetic_training(const std::string& attention, int seed);
/// A language model of the paper's, trained, looked into and asked for text.
nlohmann::json synthetic_language_model();
nlohmann::json synthetic_scaling();
nlohmann::json synthetic_gpu();

/// Writes one folder a run, each with its record.json.
void write_synthetic_runs(const std::filesystem::path& folder);
/// The language model's record.json alone.
void write_language_model(const std::filesystem::path& folder);

}  // namespace fmmformer::report
