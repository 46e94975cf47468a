// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "fmmformer/models/model.h"
#include "train/batch_runner.h"
#include "train/optimizer.h"
#include "train/step_clock.h"
#include "train/step_inputs.h"

namespace fmmformer::train {

/// What steps change and are measured by; must outlive whoever runs them.
struct StepTarget {
  const Model& model;
  Optimizer& optimizer;
  StepClock& clock;
};

/// Forward, loss, backward, clipping and the optimizer's update, without ever waiting for the
/// device. Returns fp32 [2]: the sum of the losses, and how many predictions were right.
at::Tensor training_step(const StepTarget& target, const StepInputs& inputs);

/// The same for a runner.
BatchWork training_work(const StepTarget& target);

}  // namespace fmmformer::train
