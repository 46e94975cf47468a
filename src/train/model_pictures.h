// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include "fmmformer/models/model.h"
#include "tasks/task.h"
#include "train/run_recorder.h"

namespace fmmformer::train {

/// Adds to the record what a report draws of a trained model: attention maps of one example of the
/// valid split ("maps") and the learned blend weights ("blend"). Sequences longer
/// than kLongestMap are cut there: maps are dense.
inline constexpr int64_t kLongestMap = 128;
void add_pictures(const Model& model, const tasks::Task& task, const c10::Device& device,
                  RunRecorder& recorder);

}  // namespace fmmformer::train
