// SPDX-License-Identifier: Apache-2.0
// Models and the files that hold their weights.
#pragma once

#include <c10/core/Device.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "fmmformer/models/model.h"
#include "train/experiment.h"
#include "train/named_tensors.h"

namespace fmmformer::train {

NamedTensors parameters_of(const Model& model);

/// Moves a model to where and to the type in which it computes; blend weights stay fp32.
void place_model(Model& model, const c10::Device& device, Precision precision);

/// Copies weights from a run folder (its best checkpoint, else its last) or a safetensors file into
/// the model, converting their type. Returns a note, as TrainedModel has it. Throws when names or
/// shapes differ, naming the first tensor.
std::string load_weights(const std::filesystem::path& from, Model& model);

/// "NAME" of the first parameter that holds a number that is not finite, else "the gradient of
/// NAME", else "".
std::string first_tensor_not_finite(const NamedTensors& parameters);

/// A trained model, ready to be used.
struct TrainedModel {
  ExperimentConfig experiment;
  std::shared_ptr<Model> model;
  int64_t step = 0;
  std::string note;  // which damaged checkpoints were passed over, and what there is; else empty
};

/// The model of a run at `step` (none: the best checkpoint, else the last, passing over damaged
/// ones), or of a folder that keep_run() made, which has but one. Throws std::invalid_argument when
/// there is no such run or checkpoint, DamagedCheckpoint when that of `step`, or every one, is
/// damaged.
TrainedModel load_run(const std::filesystem::path& folder, std::optional<int64_t> step,
                      const c10::Device& device);

}  // namespace fmmformer::train
