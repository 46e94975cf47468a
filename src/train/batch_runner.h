// SPDX-License-Identifier: Apache-2.0
// The ways to do something with batch after batch: a training step, a score.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fmmformer/models/model.h"
#include "train/step_clock.h"
#include "train/step_inputs.h"

namespace fmmformer::train {

struct BatchWork {
  /// Must not wait for the device, and must read all that differs from batch to batch from its
  /// inputs, so that a captured graph can repeat it. Dropout that torch draws itself is seeded
  /// before each call, from StepNumbers.
  std::function<at::Tensor(const StepInputs&)> run;
  /// Frees what run() leaves behind between calls, gradients above all; may be empty.
  std::function<void()> release;
};

/// Takes batches from host memory to the work's result.
class BatchRunner {
 public:
  virtual ~BatchRunner() = default;
  /// The result is the caller's own and may still be on its way.
  virtual at::Tensor run(const StepBatches& batches, const StepNumbers& numbers) = 0;
  /// "eager" or "cuda graph", for the record.
  virtual std::string how() const = 0;
};

struct RunnerOptions {
  at::Device device = at::kCPU;
  bool cuda_graph = false;            // wanted, where it is possible
  std::vector<int64_t> cutoffs = {};  // of the model's adaptive softmax, if it has one
  std::function<void(const std::string&)> noticed;  // told why a graph was not to be had, if set
  StepClock* clock = nullptr;                       // told of data and replays, if set
};

/// While it lives, what this thread does on a GPU runs on a stream of its own: torch's default
/// stream cannot be captured. Must outlive the runners, whose destructors need it. On a CPU:
/// nothing.
class WorkStream {
 public:
  virtual ~WorkStream() = default;
};
std::unique_ptr<WorkStream> make_work_stream(const at::Device& device);

/// Each batch by itself: what the CPU does, and a GPU where this build has no CUDA part.
std::unique_ptr<BatchRunner> make_eager_runner(BatchWork work, const RunnerOptions& options);

/// On a GPU: batches travel on a stream of their own while the batch before is computed; a graph
/// holds the work where one is wanted and possible. In a build without CUDA: make_eager_runner().
std::unique_ptr<BatchRunner> make_cuda_runner(BatchWork work, const RunnerOptions& options);

std::unique_ptr<BatchRunner> make_runner(BatchWork work, const RunnerOptions& options);

/// Has torch's own dropout on a GPU follow from the step's seed alone; a CPU has none of it.
void seed_torch_dropout(const at::Device& device, const StepNumbers& numbers);

/// What RunnerOptions wants of a model.
std::vector<int64_t> cutoffs_of(const ModelConfig& model);

/// One entry a part: the rows that an adaptive softmax gives to the targets of each cluster,
/// counted on the host while the device is busy, so that it never waits. On a CPU, and without
/// cutoffs: empty entries, and sizes are what they are.
using StepCapacities = std::vector<std::vector<int64_t>>;
StepCapacities step_capacities(const StepBatches& batches, const RunnerOptions& options);

/// Inputs for batches with these capacities.
StepInputs with_capacities(StepInputs inputs, const StepCapacities& capacities);

}  // namespace fmmformer::train
