// SPDX-License-Identifier: Apache-2.0
#include "train/training_step.h"

#include <ATen/ATen.h>

#include "train/scoring.h"

namespace fmmformer::train {

using at::Tensor;

Tensor training_step(const StepTarget& target, const StepInputs& inputs) {
  target.optimizer.zero_grad();
  Tensor total;
  for (size_t part = 0; part < inputs.parts.size(); ++part) {
    target.clock.begin(StepPart::kForward);
    const Pass pass{.training = true, .dropout_seed = inputs.dropout_seeds[part]};
    const ScoreTensors score = score_batch(target.model, inputs.parts[part], pass);
    target.clock.begin(StepPart::kBackward);
    (score.loss_sum / inputs.counted).backward();
    const Tensor both = at::stack({score.loss_sum.detach(), score.correct});
    total = part == 0 ? both : total + both;
  }
  target.clock.begin(StepPart::kUpdate);
  const double clip = target.optimizer.config().clip_global;
  if (clip > 0) target.optimizer.global_clip(clip);
  target.optimizer.advance(inputs.update);
  return total;
}

BatchWork training_work(const StepTarget& target) {
  return {.run = [target](const StepInputs& inputs) { return training_step(target, inputs); },
          .release = [&optimizer = target.optimizer] { optimizer.zero_grad(); }};
}

}  // namespace fmmformer::train
