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

/// What a norm gives besides itself, in the same memory as something that there is anyway.
enum class Besides : int64_t { kNothing, kItselfAgain, kItsInput };

struct FusedLayerNorm : torch::autograd::Function<FusedLayerNorm> {
  static variable_list forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                               const Tensor& bias, double eps, Besides besides) {
    const cuda::NormResult result = cuda::layer_norm_forward(x, weight, bias, eps);
    context->save_for_backward({x, weight, result.mean, result.scale});
    context->saved_data["besides"] = static_cast<int64_t>(besides);
    context->set_materialize_grads(false);
    if (besides == Besides::kNothing) return {result.out};
    return {result.out, (besides == Besides::kItsInput ? x : result.out).variable_data()};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto besides = static_cast<Besides>(context->saved_data["besides"].toInt());
    cuda::NormUpstream upstream{.grad = grads[0]};
    if (grads.size() > 1)
      (besides == Besides::kItsInput ? upstream.of_input : upstream.other) = grads[1];
    if (!upstream.grad.defined()) std::swap(upstream.grad, upstream.other);
    if (!upstream.grad.defined())
      return {upstream.of_input, Tensor(), Tensor(), Tensor(), Tensor()};
    const auto saved = context->get_saved_variables();
    const cuda::NormGradients gradients =
        cuda::layer_norm_backward({saved[0], saved[1], saved[2], saved[3]}, upstream);
    return {gradients.x, gradients.weight, gradients.bias, Tensor(), Tensor()};
  }
};

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  if (cuda::has_layer_norm_kernel(x, weight, bias)) {
    return FusedLayerNorm::apply(x, weight, bias, eps, Besides::kNothing)[0];
  }
  return at::layer_norm(x, weight.sizes(), weight, bias, eps);
}

TwoUses layer_norm_twice(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  if (cuda::has_layer_norm_kernel(x, weight, bias)) {
    const variable_list uses = FusedLayerNorm::apply(x, weight, bias, eps, Besides::kItselfAgain);
    return {uses[0], uses[1]};
  }
  const Tensor out = at::layer_norm(x, weight.sizes(), weight, bias, eps);
  return {out, out};
}

NormAndInput layer_norm_beside(const Tensor& x, const Tensor& weight, const Tensor& bias,
                               double eps) {
  if (cuda::has_layer_norm_kernel(x, weight, bias)) {
    const variable_list both = FusedLayerNorm::apply(x, weight, bias, eps, Besides::kItsInput);
    return {both[0], both[1]};
  }
  return {at::layer_norm(x, weight.sizes(), weight, bias, eps), x};
}

}  // namespace fmmformer
