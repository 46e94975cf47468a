// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include "train/optimizer_work.h"

namespace fmmformer::train {
namespace {

using at::Tensor;

/// What sums and factors of a type are kept in.
at::ScalarType wide(at::ScalarType type) { return type == at::kDouble ? at::kDouble : at::kFloat; }

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};

/// Norms of all tensors, fp32 or better, as scalars on their device. All are of one type: torch's
/// list operators fall back to one launch a tensor otherwise.
Tensor norms_of(const std::vector<Tensor>& tensors) {
  return at::stack(at::_foreach_norm(tensors, 2, wide(tensors.front().scalar_type())));
}

std::vector<Tensor> of_type(const std::vector<Tensor>& tensors, at::ScalarType type) {
  std::vector<Tensor> same;
  for (const Tensor& tensor : tensors) {
    if (tensor.scalar_type() == type) same.push_back(tensor);
  }
  return same;
}

Tensor clip_factors(const Tensor& norms, double max_norm) {
  return (max_norm / (norms + 1e-6)).clamp_max(1.0);
}

/// Tensors of one type: torch's list operators want that.
void step_one_type(const std::vector<OptimizerWork>& work, const UpdateFactors<double>& factors,
                   double clip_tensor) {
  std::vector<Tensor> gradients, weights, first, second;
  for (const OptimizerWork& item : work) {
    weights.push_back(item.weight);
    first.push_back(item.first_moment);
    second.push_back(item.second_moment);
    gradients.push_back(item.gradient.to(item.weight.scalar_type()));
  }
  if (clip_tensor > 0) {
    gradients =
        at::_foreach_mul(gradients, clip_factors(norms_of(gradients), clip_tensor).unbind());
  }
  if (factors.l2 != 0) gradients = at::_foreach_add(gradients, weights, factors.l2);
  at::_foreach_mul_(first, factors.beta1);
  at::_foreach_add_(first, gradients, factors.one_minus_beta1);
  at::_foreach_mul_(second, factors.beta2);
  at::_foreach_addcmul_(second, gradients, gradients, factors.one_minus_beta2);
  std::vector<Tensor> change;
  if (factors.adaptive) {
    change = at::_foreach_sqrt(second);
    at::_foreach_mul_(change, factors.moment_scale);
    at::_foreach_add_(change, factors.eps);
    at::_foreach_reciprocal_(change);
    at::_foreach_mul_(change, first);
    at::_foreach_mul_(change, factors.step_size);
  } else {
    change = at::_foreach_mul(first, factors.step_size);
  }
  // Decay joins the change. By itself it would be rounded the same way in every step, and in fp32
  // those errors add up.
  if (factors.decay != 0) at::_foreach_add_(change, weights, factors.decay);
  at::_foreach_sub_(weights, change);
  for (const OptimizerWork& item : work) {
    const bool has_master = item.parameter.scalar_type() != item.weight.scalar_type();
    if (has_master) item.parameter.copy_(item.weight);
  }
}

}  // namespace

void step_composed(const std::vector<OptimizerWork>& work, const UpdateFactors<double>& factors,
                   double clip_tensor) {
  for (const at::ScalarType type : kTypes) {
    std::vector<OptimizerWork> same;
    for (const OptimizerWork& item : work) {
      if (item.parameter.scalar_type() == type) same.push_back(item);
    }
    if (!same.empty()) step_one_type(same, factors, clip_tensor);
  }
}

Tensor global_clip_composed(const std::vector<Tensor>& gradients, double max_norm) {
  if (gradients.empty()) return at::zeros({});
  std::vector<Tensor> norms;
  for (const at::ScalarType type : kTypes) {
    const std::vector<Tensor> same = of_type(gradients, type);
    if (!same.empty()) norms.push_back(norms_of(same));
  }
  const Tensor norm = at::cat(norms).norm();
  if (max_norm > 0) {
    const Tensor factor = clip_factors(norm, max_norm);
    for (const at::ScalarType type : kTypes) {
      const std::vector<Tensor> same = of_type(gradients, type);
      if (!same.empty()) at::_foreach_mul_(same, factor.to(wide(type)));
    }
  }
  return norm;
}

}  // namespace fmmformer::train
