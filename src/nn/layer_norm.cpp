// SPDX-License-Identifier: Apache-2.0
#include "nn/layer_norm.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "nn/cuda/layer_norm_cuda.h"

namespace fmmformer {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

struct FusedLayerNorm : torch::autograd::Function<FusedLayerNorm> {
  /// One output, or two of the same memory.
  static variable_list forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                               const Tensor& bias, double eps, int64_t uses) {
    const cuda::NormResult result = cuda::layer_norm_forward(x, weight, bias, eps);
    context->save_for_backward({x, weight, result.mean, result.scale});
    context->set_materialize_grads(false);
    if (uses == 1) return {result.out};
    return {result.out, result.out.variable_data()};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    Tensor grad = grads[0], other = grads.size() > 1 ? grads[1] : Tensor();
    if (!grad.defined()) std::swap(grad, other);
    if (!grad.defined()) return variable_list(5);
    const auto saved = context->get_saved_variables();
    const cuda::NormGradients gradients =
        cuda::layer_norm_backward({saved[0], saved[1], saved[2], saved[3]}, grad, other);
    return {gradients.x, gradients.weight, gradients.bias, Tensor(), Tensor()};
  }
};

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  if (cuda::has_layer_norm_kernel(x, weight, bias)) {
    return FusedLayerNorm::apply(x, weight, bias, eps, int64_t{1})[0];
  }
  return at::layer_norm(x, weight.sizes(), weight, bias, eps);
}

TwoUses layer_norm_twice(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  if (cuda::has_layer_norm_kernel(x, weight, bias)) {
    const variable_list uses = FusedLayerNorm::apply(x, weight, bias, eps, int64_t{2});
    return {uses[0], uses[1]};
  }
  const Tensor out = at::layer_norm(x, weight.sizes(), weight, bias, eps);
  return {out, out};
}

}  // namespace fmmformer
