// SPDX-License-Identifier: Apache-2.0
#include "attention/operator_node.h"

#include <ATen/FuncTorchTLS.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <mutex>

namespace fmmformer {
namespace dynamo = torch::dynamo::autograd;
namespace {

using Tensors = OperatorNode::Tensors;

Tensors run(OperatorNode::Gradients gradients, const Tensors& grad_out, const Tensors& saved,
            const PackedOptions& options, size_t inputs) {
  if (!grad_out[0].defined()) return Tensors(inputs);
  const auto call = [&] { return gradients(grad_out[0], saved, options); };
  // Where gradients are to have a graph of their own, autograd must see the operator that makes
  // them, in order to say that it has no second derivative.
  return c10::GradMode::is_enabled() ? call() : below_autograd(call);
}

}  // namespace

// mutex_ is the base class's: several threads may walk a graph.
Tensors OperatorNode::apply(Tensors&& grad_out) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return run(gradients_, grad_out, unpacked(), options_, num_outputs());
}

Tensors OperatorNode::unpacked() const {
  Tensors tensors;
  tensors.reserve(saved_.size());
  for (const torch::autograd::SavedVariable& one : saved_) tensors.push_back(one.unpack());
  return tensors;
}

void OperatorNode::release_variables() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (torch::autograd::SavedVariable& one : saved_) one.reset_data();
}

void OperatorNode::compiled_args(dynamo::CompiledNodeArgs& args) const {
  args.collect(std::string(name_));
  args.collect(saved_, /*is_output=*/false);
  args.collect(options_.codes);
  args.collect(options_.scales);
}

// The graph outlives this node, so that what it calls must not need it.
Tensors OperatorNode::apply_with_saved(const Tensors& grad_out, dynamo::SwapSavedVariables& saved) {
  saved.before(saved_);
  dynamo::PackedArgs packed;
  packed.pack(unpacked());
  packed.pack(options_.codes);
  packed.pack(options_.scales);
  std::vector<at::TypePtr> types;
  for (const c10::IValue& one : packed.vec()) types.push_back(one.type());
  const auto call = [gradients = gradients_, inputs = num_outputs()](
                        const Tensors& grad_out, const std::vector<c10::IValue>& arguments) {
    dynamo::PackedArgs packed(arguments);
    const auto tensors = packed.unpack<Tensors>();
    PackedOptions options{.codes = packed.unpack<std::vector<int64_t>>()};
    options.scales = packed.unpack<std::vector<double>>();
    return run(gradients, grad_out, tensors, options, inputs);
  };
  const auto& compiler = dynamo::getPyCompilerInterface();
  const std::string function =
      compiler->bind_function(saved.get_py_compiler(), name_, call, types,
                              /*is_custom_function=*/true, /*is_traceable=*/false);
  const auto metadata =
      dynamo::IValuePacker<std::vector<std::optional<torch::autograd::InputMetadata>>>::pack(
          dynamo::get_input_metadata(next_edges()));
  Tensors result = compiler->call_function(saved.get_py_compiler(), "apply_functional", function,
                                           grad_out, packed.vec(), metadata);
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
