// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "train/scoring.h"

namespace fmmformer::train {

/// Where a run is, beside its tensors: what state.json of a checkpoint holds. Batches, dropout and
/// schedule follow from `step`, so there is nothing of them here.
struct RunState {
  int64_t step = 0;  // optimizer steps done
  Score window;      // of the steps since the last line of the log
  std::optional<double> best_metric;
  int64_t best_step = 0;
  double seconds = 0;  // spent, over all sittings
  std::string device;

  nlohmann::ordered_json to_json() const;
  /// Throws std::invalid_argument for what to_json did not write.
  static RunState from_json(const nlohmann::ordered_json& json);
};

}  // namespace fmmformer::train
