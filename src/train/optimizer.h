// SPDX-License-Identifier: Apache-2.0
// Adam, AdamW and RAdam over named parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "train/named_tensors.h"
#include "train/optimizer_config.h"
#include "train/optimizer_math.h"

namespace fmmformer::train {

struct OptimizerWork;

/// How a step is computed. kAuto: fused over all tensors, by a loop on the CPU and by kernels on a
/// GPU; torch's operators where this build has neither. They have names so that each can be tested.
enum class OptimizerPath { kAuto, kFusedCpu, kFusedCuda, kComposed };

/// Advances parameters in place from their gradients. Moments are kept in fp32 (fp64 for fp64
/// parameters). A bf16 or fp16 parameter has an fp32 master copy among the state, which is what is
/// advanced; the parameter is rounded from it. A parameter without a gradient is left alone. On the
/// CPU the result is bit for bit the same for every number of threads.
class Optimizer {
 public:
  /// Throws c10::ValueError for a parameter that is named twice, is not contiguous, lies on another
  /// device than the first, or has a type that is not floating point.
  Optimizer(NamedTensors parameters, const OptimizerConfig& config,
            OptimizerPath path = OptimizerPath::kAuto);

  /// One update. With config.clip_tensor, each tensor's gradient is first scaled down to that norm;
  /// the gradients themselves stay as they are.
  void step(double learning_rate, double beta1);

  /// step() in two halves, for a device that reads what changes from step to step in its own memory
  /// (a captured graph): count_step() begins update number steps() + 1 and says what it needs to
  /// know; advance() makes the update from that, as fp64 [kFactorCount] on the parameters' device,
  /// without waiting for the device.
  PackedFactors count_step(double learning_rate, double beta1);
  void advance(const at::Tensor& factors);

  /// Scales all gradients in place by min(1, max_norm / (norm + 1e-6)), norm that of all of them
  /// together, and returns the norm before: a scalar on the parameters' device (fp64 on the CPU,
  /// fp32 elsewhere), so that reading it is up to the caller. max_norm <= 0 only measures.
  at::Tensor global_clip(double max_norm);

  /// Forgets all gradients.
  void zero_grad();

  int64_t steps() const { return steps_; }
  const OptimizerConfig& config() const { return config_; }

  /// "step" (int64 scalar), then NAME.first_moment, NAME.second_moment and, where there is one,
  /// NAME.master of every parameter. The tensors are the state itself, not copies of it.
  NamedTensors save_state() const;

  /// Takes over what save_state returned, copying; on any device. Throws c10::ValueError that names
  /// the first tensor that is missing, too many or of another shape, and then changes nothing.
  void load_state(const NamedTensors& state);

 private:
  struct Slot {
    std::string name;
    at::Tensor parameter;
    at::Tensor master;  // the parameter itself unless that is of a half type
    at::Tensor first_moment;
    at::Tensor second_moment;
    bool has_master() const { return !master.is_same(parameter); }
  };

  std::vector<OptimizerWork> work_with_gradients() const;

  std::vector<Slot> slots_;
  OptimizerConfig config_;
  OptimizerPath path_;
  int64_t steps_ = 0;
};

}  // namespace fmmformer::train
