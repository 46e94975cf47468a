// SPDX-License-Identifier: Apache-2.0
#include "train/batch_runner.h"

#include <ATen/ATen.h>

#include "fmmformer/nn/cluster_capacity.h"

namespace fmmformer::train {

using at::Tensor;

namespace {

class EagerRunner : public BatchRunner {
 public:
  EagerRunner(BatchWork work, const RunnerOptions& options)
      : work_(std::move(work)), options_(options) {}

  Tensor run(const StepBatches& batches, const StepNumbers& numbers) override {
    const StepLayout layout(batches);
    const Tensor block = at::empty({layout.bytes()}, at::kByte);
    layout.write(batches, numbers, block.mutable_data_ptr());
    seed_torch_dropout(options_.device, numbers);
    return work_.run(with_capacities(layout.views(block.to(options_.device)),
                                     step_capacities(batches, options_)));
  }

  std::string how() const override { return "eager"; }

 private:
  BatchWork work_;
  RunnerOptions options_;
};

}  // namespace

std::unique_ptr<BatchRunner> make_eager_runner(BatchWork work, const RunnerOptions& options) {
  return std::make_unique<EagerRunner>(std::move(work), options);
}

std::unique_ptr<BatchRunner> make_runner(BatchWork work, const RunnerOptions& options) {
  if (options.device.is_cuda()) return make_cuda_runner(std::move(work), options);
  return make_eager_runner(std::move(work), options);
}

void seed_torch_dropout(const at::Device& device, const StepNumbers& numbers) {
  if (!device.is_cuda() || numbers.dropout_seeds.empty()) return;
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::scoped_lock lock(generator.mutex());
  generator.set_current_seed(static_cast<uint64_t>(numbers.dropout_seeds.front()));
}

std::vector<int64_t> cutoffs_of(const ModelConfig& model) {
  const bool has_clusters =
      model.kind == ModelKind::kLanguageModel && model.output == Output::kAdaptiveSoftmax;
  return has_clusters ? model.cutoffs : std::vector<int64_t>{};
}

StepCapacities step_capacities(const StepBatches& batches, const RunnerOptions& options) {
  StepCapacities capacities(batches.size());
  if (!options.device.is_cuda()) return capacities;
  for (size_t part = 0; part < batches.size(); ++part) {
    capacities[part] = cluster_capacities(batches[part].targets, options.cutoffs);
  }
  return capacities;
}

StepInputs with_capacities(StepInputs inputs, const StepCapacities& capacities) {
  for (size_t part = 0; part < inputs.parts.size(); ++part) {
    inputs.parts[part].inputs.cluster_capacities = capacities[part];
  }
  return inputs;
}

}  // namespace fmmformer::train
