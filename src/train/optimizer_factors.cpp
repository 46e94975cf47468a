// SPDX-License-Identifier: Apache-2.0
#include "train/optimizer_factors.h"

#include <cmath>

namespace fmmformer::train {
namespace {

// Below this many degrees of freedom the second moment is too uncertain to divide by. The authors'
// RAdam says >= 5, the paper of RAdam > 4: at beta2 = 0.999 the same from step 6 on.
constexpr double kLeastFreedom = 5;

struct Rectification {
  bool adaptive;
  double scale;
};

Rectification rectification(double beta2, int64_t step) {
  const double power = std::pow(beta2, static_cast<double>(step));
  const double limit = 2 / (1 - beta2) - 1;
  const double freedom = limit - 2 * static_cast<double>(step) * power / (1 - power);
  if (freedom < kLeastFreedom) return {.adaptive = false, .scale = 1};
  const double ratio =
      (freedom - 4) * (freedom - 2) * limit / ((limit - 4) * (limit - 2) * freedom);
  return {.adaptive = true, .scale = std::sqrt((1 - power) * ratio)};
}

}  // namespace

UpdateFactors<double> update_factors(const OptimizerConfig& config, const StepSetting& setting) {
  const double t = static_cast<double>(setting.step);
  const double first_correction = 1 - std::pow(setting.beta1, t);
  UpdateFactors<double> factors{.beta1 = setting.beta1,
                                .one_minus_beta1 = 1 - setting.beta1,
                                .beta2 = config.beta2,
                                .one_minus_beta2 = 1 - config.beta2,
                                .l2 = 0,
                                .decay = setting.learning_rate * config.weight_decay,
                                .moment_scale = 1 / std::sqrt(1 - std::pow(config.beta2, t)),
                                .eps = config.eps,
                                .step_size = setting.learning_rate / first_correction,
                                .adaptive = true};
  switch (config.kind) {
    case OptimizerKind::kAdam:
      factors.l2 = config.weight_decay;
      factors.decay = 0;
      break;
    case OptimizerKind::kAdamW:
      break;
    case OptimizerKind::kRAdam: {
      const Rectification rectified = rectification(config.beta2, setting.step);
      factors.moment_scale = 1;
      factors.step_size *= rectified.scale;
      factors.adaptive = rectified.adaptive;
      break;
    }
  }
  return factors;
}

}  // namespace fmmformer::train
