// SPDX-License-Identifier: Apache-2.0
// The gradient of an operator of ours, as autograd sees it. In place of torch::autograd::Function,
// whose bookkeeping takes the host longer than the rest of a small call does (ADR 28).
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "attention/packed_options.h"

namespace fmmformer {

/// Autograd's node of a call, with what backward needs of it. Nothing here may ask for sizes: under
/// torch.compile the length is symbolic.
class OperatorNode final : public torch::autograd::Node {
 public:
  using Tensors = torch::autograd::variable_list;
  /// Of the inputs that the node has edges to, in their order. `saved`: what save() was given.
  using Gradients = Tensors (*)(const at::Tensor& grad_out, const Tensors& saved,
                                const PackedOptions& options);

  OperatorNode(const char* name, Gradients gradients) : name_(name), gradients_(gradients) {}
  std::string name() const override { return name_; }

  /// A tensor that is not there is kept as an undefined one.
  template <typename... Inputs>
  void save(PackedOptions options, const Inputs&... inputs) {
    options_ = std::move(options);
    saved_.reserve(sizeof...(inputs));
    (saved_.emplace_back(inputs, /*is_output=*/false), ...);
  }

  void release_variables() override;
  // For compiled autograd, which takes the node into its graph as one call that it does not look
  // into.
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override;
  Tensors apply_with_saved(const Tensors& grad_out,
                           torch::dynamo::autograd::SwapSavedVariables& saved) override;

 private:
  Tensors apply(Tensors&& grad_out) override;
  Tensors unpacked() const;

  const char* name_;
  Gradients gradients_;
  std::vector<torch::autograd::SavedVariable> saved_;
  PackedOptions options_;
};

/// Runs an operator that autograd need not see.
template <typename Run>
auto below_autograd(const Run& run) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return run();
}

/// Makes a node with edges to the inputs, and puts it behind `out`.
template <typename... Inputs>
std::shared_ptr<OperatorNode> node_behind(const at::Tensor& out, const char* name,
                                          OperatorNode::Gradients gradients,
                                          const Inputs&... inputs) {
  std::shared_ptr<OperatorNode> node(new OperatorNode(name, gradients),
                                     torch::autograd::deleteNode);
  node->set_next_edges(torch::autograd::collect_next_edges(inputs...));
  torch::autograd::set_history(out, node);
  return node;
}

/// Throw for what a node does not serve, rather than let it silently be wrong: transforms of
/// functorch, and inputs with forward derivatives.
void check_no_transform();
void check_no_forward_derivative(const char* function, const at::Tensor& input);
void check_no_forward_derivative(const char* function, const std::optional<at::Tensor>& input);

/// Whether autograd wants the gradient of an input. Throws as the checks above, in the name of
/// `function`.
template <typename... Inputs>
bool wants_gradient(const char* function, const Inputs&... inputs) {
  check_no_transform();
  (check_no_forward_derivative(function, inputs), ...);
  return torch::autograd::compute_requires_grad(inputs...);
}

}  // namespace fmmformer
