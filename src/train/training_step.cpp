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

namespace {

class EagerRunner : public StepRunner {
 public:
  EagerRunner(const StepTarget& target, const at::Device& device)
      : target_(target), device_(device) {}

  Tensor run(const StepBatches& batches, const StepNumbers& numbers) override {
    const StepLayout layout(batches);
    const Tensor block = at::empty({layout.bytes()}, at::kByte);
    layout.write(batches, numbers, block.mutable_data_ptr());
    return training_step(target_, layout.views(block.to(device_)));
  }

  std::string how() const override { return "eager"; }

 private:
  StepTarget target_;
  at::Device device_;
};

}  // namespace

std::unique_ptr<StepRunner> make_eager_runner(const StepTarget& target, const at::Device& device) {
  return std::make_unique<EagerRunner>(target, device);
}

std::unique_ptr<StepRunner> make_step_runner(const StepTarget& target,
                                             const RunnerOptions& options) {
  if (options.device.is_cuda()) return make_cuda_runner(target, options);
  return make_eager_runner(target, options.device);
}

std::string graph_obstacle(const ModelConfig& model) {
  if (model.kind == ModelKind::kLanguageModel && model.output == Output::kAdaptiveSoftmax) {
    return "the adaptive softmax sorts tokens into clusters whose sizes depend on the data";
  }
  return "";
}

}  // namespace fmmformer::train
