// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>

namespace fmmformer::train {

/// Throws std::invalid_argument when the run has no record to be changed: to be asked before the
/// work whose findings go there.
void check_has_record(const std::filesystem::path& run);

/// Changes the record of a finished or stopped run: what is found out about a model afterwards
/// belongs to it, and reports show it. Holds the run's lock meanwhile. Throws as RunFolder::resume
/// does, so when the run is being trained; std::invalid_argument when it has no record yet. (A run
/// that is trained on loses what was added: it was about other weights.)
void edit_record(const std::filesystem::path& run,
                 const std::function<void(nlohmann::ordered_json&)>& change);

}  // namespace fmmformer::train
