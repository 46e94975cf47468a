// SPDX-License-Identifier: Apache-2.0
#include "nn/weighted_field.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "nn/cuda/weighted_field_cuda.h"

namespace fmmformer {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

/// In one kernel forward and two backward, where torch takes seven, some of them over fp32 copies.
struct WeightedField : torch::autograd::Function<WeightedField> {
  static Tensor forward(AutogradContext* context, const Tensor& rest, const Tensor& field,
                        const Tensor& weight) {
    context->save_for_backward({field, weight});
    return cuda::add_weighted_field(rest, field, weight);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grad) {
    const variable_list saved = context->get_saved_variables();
    const auto [field, weight] = cuda::weighted_field_gradients(grad[0], saved[0], saved[1]);
    return {grad[0], field, weight};
  }
};

}  // namespace

Tensor with_field(const Tensor& rest, const Tensor& field, const std::optional<Tensor>& weight) {
  if (!weight) return rest.defined() ? rest + field : field;
  if (!rest.defined()) return (field * *weight).to(field.scalar_type());
  if (cuda::has_weighted_field_kernel(rest, field, *weight)) {
    return WeightedField::apply(rest, field, *weight);
  }
  return at::addcmul(rest, field, *weight).to(field.scalar_type());
}

}  // namespace fmmformer
