// SPDX-License-Identifier: Apache-2.0
#include "train/batch_runner.h"

#include <ATen/ATen.h>

namespace fmmformer::train {

using at::Tensor;

namespace {

class EagerRunner : public BatchRunner {
 public:
  EagerRunner(BatchWork work, const at::Device& device) : work_(std::move(work)), device_(device) {}

  Tensor run(const StepBatches& batches, const StepNumbers& numbers) override {
    const StepLayout layout(batches);
    const Tensor block = at::empty({layout.bytes()}, at::kByte);
    layout.write(batches, numbers, block.mutable_data_ptr());
    seed_torch_dropout(device_, numbers);
    return work_.run(layout.views(block.to(device_)));
  }

  std::string how() const override { return "eager"; }

 private:
  BatchWork work_;
  at::Device device_;
};

}  // namespace

std::unique_ptr<BatchRunner> make_eager_runner(BatchWork work, const at::Device& device) {
  return std::make_unique<EagerRunner>(std::move(work), device);
}

std::unique_ptr<BatchRunner> make_runner(BatchWork work, const RunnerOptions& options) {
  if (options.device.is_cuda()) return make_cuda_runner(std::move(work), options);
  return make_eager_runner(std::move(work), options.device);
}

void seed_torch_dropout(const at::Device& device, const StepNumbers& numbers) {
  if (!device.is_cuda() || numbers.dropout_seeds.empty()) return;
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::scoped_lock lock(generator.mutex());
  generator.set_current_seed(static_cast<uint64_t>(numbers.dropout_seeds.front()));
}

std::string graph_obstacle(const ModelConfig& model) {
  if (model.kind == ModelKind::kLanguageModel && model.output == Output::kAdaptiveSoftmax) {
    return "the adaptive softmax sorts tokens into clusters whose sizes depend on the data";
  }
  return "";
}

}  // namespace fmmformer::train
