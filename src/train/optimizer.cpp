// SPDX-License-Identifier: Apache-2.0
#include "train/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <set>

#include "train/optimizer_factors.h"
#include "train/optimizer_work.h"

namespace fmmformer::train {
namespace {

using at::Tensor;

constexpr const char* kStep = "step";
constexpr const char* kFirstMoment = ".first_moment";
constexpr const char* kSecondMoment = ".second_moment";
constexpr const char* kMaster = ".master";

bool is_half(at::ScalarType type) { return type == at::kBFloat16 || type == at::kHalf; }

void check_parameter(const std::string& name, const Tensor& parameter, const Tensor& first) {
  TORCH_CHECK_VALUE(parameter.defined(), "Optimizer: parameter '", name, "' is undefined");
  const at::ScalarType type = parameter.scalar_type();
  TORCH_CHECK_VALUE(type == at::kFloat || type == at::kDouble || is_half(type),
                    "Optimizer: parameter '", name, "' has type ", type,
                    ", allowed: float64, float32, bfloat16, float16");
  TORCH_CHECK_VALUE(parameter.is_contiguous(), "Optimizer: parameter '", name,
                    "' is not contiguous; store it contiguous and take views of it");
  TORCH_CHECK_VALUE(parameter.device() == first.device(), "Optimizer: parameter '", name,
                    "' lies on ", parameter.device(), ", the first one on ", first.device(),
                    "; move the whole model to one device");
}

}  // namespace

Optimizer::Optimizer(NamedTensors parameters, const OptimizerConfig& config, OptimizerPath path)
    : config_(config), path_(path) {
  std::set<std::string> names;
  std::set<const void*> tensors;
  for (auto& [name, parameter] : parameters) {
    check_parameter(name, parameter, parameters.front().second);
    TORCH_CHECK_VALUE(names.insert(name).second, "Optimizer: two parameters are called '", name,
                      "'; rename one");
    TORCH_CHECK_VALUE(tensors.insert(parameter.unsafeGetTensorImpl()).second,
                      "Optimizer: parameter '", name,
                      "' is given twice under different names; name a shared tensor once");
    Slot slot{.name = std::move(name), .parameter = parameter, .master = parameter};
    const Tensor values = parameter.detach();
    if (is_half(values.scalar_type())) slot.master = values.to(at::kFloat);
    slot.first_moment = at::zeros_like(slot.master.detach());
    slot.second_moment = at::zeros_like(slot.master.detach());
    slots_.push_back(std::move(slot));
  }
  if (path_ == OptimizerPath::kAuto) {
    const at::Device device = slots_.empty() ? at::kCPU : slots_.front().parameter.device();
    path_ = device.is_cpu()                       ? OptimizerPath::kFusedCpu
            : device.is_cuda() && has_step_cuda() ? OptimizerPath::kFusedCuda
                                                  : OptimizerPath::kComposed;
  }
}

std::vector<OptimizerWork> Optimizer::work_with_gradients() const {
  std::vector<OptimizerWork> work;
  for (const Slot& slot : slots_) {
    const Tensor& gradient = slot.parameter.grad();
    if (!gradient.defined()) continue;
    TORCH_CHECK_VALUE(!gradient.is_sparse(), "Optimizer: the gradient of '", slot.name,
                      "' is sparse; use dense gradients");
    work.push_back({.parameter = slot.parameter.detach(),
                    .gradient = gradient.detach().contiguous(),
                    .weight = slot.master.detach(),
                    .first_moment = slot.first_moment,
                    .second_moment = slot.second_moment});
  }
  return work;
}

void Optimizer::step(double learning_rate, double beta1) {
  PackedFactors factors = count_step(learning_rate, beta1);
  const Tensor here = at::from_blob(factors.value, {kFactorCount}, at::kDouble);
  advance(slots_.empty() ? here : here.to(slots_.front().parameter.device()));
}

PackedFactors Optimizer::count_step(double learning_rate, double beta1) {
  ++steps_;
  return packed(
      update_factors(config_, {.step = steps_, .learning_rate = learning_rate, .beta1 = beta1}));
}

void Optimizer::advance(const Tensor& factors) {
  const at::NoGradGuard no_grad;
  const std::vector<OptimizerWork> work = work_with_gradients();
  if (work.empty()) return;
  if (path_ == OptimizerPath::kFusedCuda) return step_cuda(work, factors, config_.clip_tensor);
  const Tensor here = factors.cpu();
  const UpdateFactors<double> known = unpacked(here.const_data_ptr<double>());
  if (path_ == OptimizerPath::kFusedCpu) {
    step_fused(work, known, config_.clip_tensor);
  } else {
    step_composed(work, known, config_.clip_tensor);
  }
}

Tensor Optimizer::global_clip(double max_norm) {
  const at::NoGradGuard no_grad;
  std::vector<Tensor> gradients;
  for (const Slot& slot : slots_) {
    if (slot.parameter.grad().defined()) gradients.push_back(slot.parameter.grad().detach());
  }
  return path_ == OptimizerPath::kFusedCpu ? global_clip_fused(gradients, max_norm)
                                           : global_clip_composed(gradients, max_norm);
}

void Optimizer::zero_grad() {
  for (Slot& slot : slots_) slot.parameter.mutable_grad().reset();
}

NamedTensors Optimizer::save_state() const {
  NamedTensors state = {{kStep, at::scalar_tensor(steps_, at::kLong)}};
  for (const Slot& slot : slots_) {
    state.emplace_back(slot.name + kFirstMoment, slot.first_moment);
    state.emplace_back(slot.name + kSecondMoment, slot.second_moment);
    if (slot.has_master()) state.emplace_back(slot.name + kMaster, slot.master);
  }
  return state;
}

void Optimizer::load_state(const NamedTensors& state) {
  const at::NoGradGuard no_grad;
  const Tensor steps = at::zeros({}, at::kLong);
  NamedTensors own = save_state();
  own.front().second = steps;
  copy_tensors(state, own, "the optimizer's state");
  steps_ = steps.item<int64_t>();
  for (Slot& slot : slots_) {
    if (slot.has_master()) slot.parameter.detach().copy_(slot.master);
  }
}

}  // namespace fmmformer::train
