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

/// Adds to the record what a report draws of a trained model: attention maps of one example of the
/// valid split ("maps") and the learned blend weights ("blend").
void add_pictures(const Model& model, const tasks::Task& task, const c10::Device& device,
                  RunRecorder& recorder);

}  // namespace fmmformer::train
