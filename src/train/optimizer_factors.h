// SPDX-License-Identifier: Apache-2.0
// From a configuration, a step number, a learning rate and beta1 to the factors of
// optimizer_math.h.
#pragma once

#include <cstdint>

#include "train/optimizer_config.h"
#include "train/optimizer_math.h"

namespace fmmformer::train {

struct StepSetting {
  int64_t step = 1;  // counts from 1
  double learning_rate = 0;
  double beta1 = 0;
};

/// Adam and AdamW as torch has them, RAdam as the authors of the copy task have it:
///   Adam, AdamW   step_size = lr / (1 - beta1^t),  moment_scale = 1 / sqrt(1 - beta2^t)
///   RAdam         rho = rho_inf - 2 t beta2^t / (1 - beta2^t),  rho_inf = 2 / (1 - beta2) - 1
///     rho >= 5    step_size = lr sqrt((1 - beta2^t) (rho-4)(rho-2) rho_inf /
///                 ((rho_inf-4)(rho_inf-2) rho)) / (1 - beta1^t),  moment_scale = 1
///     else        step_size = lr / (1 - beta1^t), not adaptive
/// beta1 may change from step to step; the correction uses the current one.
UpdateFactors<double> update_factors(const OptimizerConfig& config, const StepSetting& setting);

}  // namespace fmmformer::train
