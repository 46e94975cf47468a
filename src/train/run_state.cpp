// SPDX-License-Identifier: Apache-2.0
#include "train/run_state.h"

#include <stdexcept>

namespace fmmformer::train {

using Json = nlohmann::ordered_json;

Json RunState::to_json() const {
  return {{"step", step},
          {"window", {{"loss", window.loss}, {"correct", window.correct}, {"count", window.count}}},
          {"best_metric", best_metric ? Json(*best_metric) : Json()},
          {"best_step", best_step},
          {"seconds", seconds},
          {"device", device}};
}

RunState RunState::from_json(const Json& json) {
  try {
    const Json& window = json.at("window");
    const Json& best = json.at("best_metric");
    return {.step = json.at("step"),
            .window = {.loss = window.at("loss"),
                       .correct = window.at("correct"),
                       .count = window.at("count")},
            .best_metric = best.is_null() ? std::nullopt : std::optional(best.get<double>()),
            .best_step = json.at("best_step"),
            .seconds = json.at("seconds"),
            .device = json.at("device")};
  } catch (const nlohmann::json::exception& error) {
    throw std::invalid_argument(
        std::string("the checkpoint's state is not one of a training run (") + error.what() + ")");
  }
}

}  // namespace fmmformer::train
