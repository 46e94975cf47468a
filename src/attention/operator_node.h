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
class OperatorNode : public torch::autograd::Node {
 public:
  using Tensors = torch::autograd::variable_list;

  /// A tensor that is not there is kept as an undefined one.
  template <typename... Inputs>
  void save(PackedOptions options, const Inputs&... inputs) {
    options_ = std::move(options);
    saved_.reserve(sizeof...(inputs));
    (saved_.emplace_back(inputs, /*is_output=*/false), ...);
  }

  void release_variables() final;
  // For compiled autograd.
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const final;
  Tensors apply_with_saved(const Tensors& grad_out,
                           torch::dynamo::autograd::SwapSavedVariables& saved) final;

 protected:
  /// Of the inputs that the node has edges to, in their order. `saved`: what save() was given.
  virtual Tensors gradients(const at::Tensor& grad_out, const Tensors& saved,
                            const PackedOptions& options) const = 0;

 private:
  Tensors apply(Tensors&& grad_out) final;

  std::vector<torch::autograd::SavedVariable> saved_;
  PackedOptions options_;
};

/// Runs an operator that autograd need not see.
template <typename Run>
auto below_autograd(const Run& run) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  return run();
}

/// Makes a Node with edges to the inputs, and puts it behind `out`.
template <typename Node, typename... Inputs>
std::shared_ptr<Node> node_behind(const at::Tensor& out, const Inputs&... inputs) {
  std::shared_ptr<Node> node(new Node, torch::autograd::deleteNode);
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
