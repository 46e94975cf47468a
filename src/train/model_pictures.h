// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include "fmmformer/models/model.h"
#include "tasks/task.h"
#include "train/run_recorder.h"

namespace fmmformer::train {

// Maps are dense: longer sequences are cut here, and shown in cells of several tokens each.
inline constexpr int64_t kLongestMap = 256;
inline constexpr int64_t kMapCells = 64;

struct PictureOptions {
  int64_t longest = kLongestMap;  // tokens of the example that are looked at, padding not
  int64_t cells = kMapCells;      // a side of a map, at most
};

/// What a report draws of a trained model: attention maps of every head on one example ("maps") and
/// the learned blend weights ("blend", which is missing where none are learned).
nlohmann::ordered_json pictures_of(const Model& model, const tasks::Task& task,
                                   const Batch& example, const c10::Device& device,
                                   const PictureOptions& options = {});

/// Adds those of the first example of the valid split to the record.
void add_pictures(const Model& model, const tasks::Task& task, const c10::Device& device,
                  RunRecorder& recorder);

}  // namespace fmmformer::train
