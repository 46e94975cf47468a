// SPDX-License-Identifier: Apache-2.0
#include "attention/operator_node.h"

#include <ATen/FuncTorchTLS.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <mutex>

namespace fmmformer {

// mutex_ is the base class's: several threads may walk a graph.
OperatorNode::Tensors OperatorNode::apply(Tensors&& grad_out) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!grad_out[0].defined()) return Tensors(num_outputs());
  Tensors tensors;
  tensors.reserve(saved_.size());
  for (const torch::autograd::SavedVariable& one : saved_) tensors.push_back(one.unpack());
  const auto run = [&] { return gradients(grad_out[0], tensors, options_); };
  // Where gradients are to have a graph of their own, autograd must see the operator that makes
  // them, in order to say that it has no second derivative.
  return c10::GradMode::is_enabled() ? run() : below_autograd(run);
}

void OperatorNode::release_variables() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (torch::autograd::SavedVariable& one : saved_) one.reset_data();
}

void OperatorNode::compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const {
  args.collect(saved_, /*is_output=*/false);
  args.collect(options_.codes);
  args.collect(options_.scales);
}

OperatorNode::Tensors OperatorNode::apply_with_saved(
    const Tensors& grad_out, torch::dynamo::autograd::SwapSavedVariables& saved) {
  saved.before(saved_);
  Tensors result = apply(Tensors(grad_out));
  saved.after(saved_);
  return result;
}

void check_no_transform() {
  if (const auto& functorch = at::functorch::functorchTLSAccessor())
    functorch->checkSupportsCppAutogradFunction();
}

void check_no_forward_derivative(const char* function, const at::Tensor& input) {
  TORCH_CHECK_NOT_IMPLEMENTED(!input._fw_grad(/*level=*/0).defined(), function,
                              ": an input has a forward derivative, which this operator does not "
                              "carry on; use backward(), or the reference operator");
}
void check_no_forward_derivative(const char* function, const std::optional<at::Tensor>& input) {
  if (input) check_no_forward_derivative(function, *input);
}

}  // namespace fmmformer
