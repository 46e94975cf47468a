// SPDX-License-Identifier: Apache-2.0
// One training step as a function of its inputs, and the ways to run it.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>

#include "fmmformer/models/model.h"
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
/// device. Returns fp32 [2]: the sum of the losses, and how many predictions were right. Everything
/// that differs from step to step is read from `inputs`, so that a captured graph can repeat it.
at::Tensor training_step(const StepTarget& target, const StepInputs& inputs);

/// Takes a step from host memory to its result.
class StepRunner {
 public:
  virtual ~StepRunner() = default;
  /// As training_step(); the result is the caller's own and may still be on its way.
  virtual at::Tensor run(const StepBatches& batches, const StepNumbers& numbers) = 0;
  /// "eager" or "cuda graph", for the record.
  virtual std::string how() const = 0;
};

struct RunnerOptions {
  at::Device device = at::kCPU;
  bool cuda_graph = false;                          // wanted, where it is possible
  std::string no_graph_because;                     // why the model cannot; empty: it can
  std::function<void(const std::string&)> noticed;  // told why a graph was not to be had
};

/// Each step by itself: what the CPU does, and a GPU where this build has no CUDA part.
std::unique_ptr<StepRunner> make_eager_runner(const StepTarget& target, const at::Device& device);

/// On a GPU: batches travel on a stream of their own, steps run on another, which is the current
/// one of this thread while the runner lives; a graph holds the step where one is wanted and
/// possible. In a build without CUDA: make_eager_runner().
std::unique_ptr<StepRunner> make_cuda_runner(const StepTarget& target,
                                             const RunnerOptions& options);

std::unique_ptr<StepRunner> make_step_runner(const StepTarget& target,
                                             const RunnerOptions& options);

/// Why a step of this model cannot be held in a graph; empty: it can.
std::string graph_obstacle(const ModelConfig& model);

}  // namespace fmmformer::train
