// SPDX-License-Identifier: Apache-2.0
// Prints what AdamW under OneCycle makes of two weights, step by step, for one_cycle_in_torch.py:
//   rate beta1 weight weight
// The gradient of weight i at step t is weight * (i + 1) + sin(t + i).
#include <ATen/ATen.h>

#include <cmath>
#include <cstdio>

#include "train/optimizer.h"
#include "train/schedule.h"

int main() {
  using namespace fmmformer::train;
  constexpr int64_t kSteps = 200;
  const ScheduleConfig schedule{
      .kind = ScheduleKind::kOneCycle, .learning_rate = 1e-2, .warmup = 40};
  const at::Tensor weights = at::arange(1, 3, at::kDouble).requires_grad_();
  Optimizer optimizer({{"weights", weights}}, {.kind = OptimizerKind::kAdamW, .eps = 1e-6});
  for (int64_t step = 0; step < kSteps; ++step) {
    const at::Tensor place = at::arange(0, 2, at::kDouble);
    weights.mutable_grad() =
        weights.detach() * (place + 1) + (place + static_cast<double>(step)).sin();
    const auto [rate, beta1] = scheduled_update(schedule, step, kSteps);
    optimizer.step(rate, beta1);
    std::printf("%.17g %.17g %.17g %.17g\n", rate, beta1, weights[0].item<double>(),
                weights[1].item<double>());
  }
}
