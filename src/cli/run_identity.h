// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include "train/run_recorder.h"

namespace fmmformer::cli {

/// This machine, this program, now: for the record of a run.
train::RunIdentity run_identity(const c10::Device& device, const std::string& command);

}  // namespace fmmformer::cli
