// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "attention/deterministic_scope.h"
#include "attention/or_nothing.h"
#include "fmmformer/nn/layers.h"
#include "nn/cuda/dropout_cuda.h"
#include "nn/cuda/embedding_cuda.h"

namespace fmmformer {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

/// The gradient of a table on a GPU: the same bits in every run.
Tensor gradient_of_table(const Tensor& grad, const Tensor& indices, int64_t rows) {
  if (cuda::has_embedding_gradient(grad, rows)) {
    return cuda::embedding_gradient(grad, indices, rows);
  }
  const DeterministicScope same_bits;
  return at::embedding_dense_backward(grad, indices, rows, /*padding_idx=*/-1,
                                      /*scale_grad_by_freq=*/false);
}

struct EmbeddedRows : torch::autograd::Function<EmbeddedRows> {
  static Tensor forward(AutogradContext* context, const Tensor& weight, const Tensor& indices) {
    context->save_for_backward({indices});
    context->saved_data["rows"] = weight.size(0);
    return at::embedding(weight, indices);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const Tensor indices = context->get_saved_variables()[0];
    const int64_t rows = context->saved_data["rows"].toInt();
    return {gradient_of_table(grads[0], indices, rows), Tensor()};
  }
};

struct EmbeddedTokens : torch::autograd::Function<EmbeddedTokens> {
  static Tensor forward(AutogradContext* context, const Tensor& weight, const Tensor& indices,
                        const std::optional<Tensor>& positions, double scale,
                        const DropoutSite& site, const std::optional<Tensor>& some_seed) {
    const Tensor seed = some_seed.value_or(Tensor());
    context->save_for_backward({indices, seed});
    context->saved_data["rows"] = weight.size(0);
    context->saved_data["scale"] = scale;
    context->saved_data["probability"] = site.probability;
    context->saved_data["site"] = site.site;
    return cuda::embedded_tokens({.table = weight,
                                  .tokens = indices,
                                  .positions = positions.value_or(Tensor()),
                                  .scale = scale},
                                 site, seed);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const double scale = context->saved_data["scale"].toDouble();
    const DropoutSite site{context->saved_data["probability"].toDouble(),
                           context->saved_data["site"].toInt()};
    const Tensor grad =
        site.probability > 0 ? cuda::dropout_multiply(grads[0], site, saved[1]) : grads[0];
    variable_list gradients(6);
    gradients[0] = gradient_of_table(scale == 1 ? grad : grad * scale, saved[0],
                                     context->saved_data["rows"].toInt());
    if (context->needs_input_grad(2)) gradients[2] = grad.sum(0);
    return gradients;
  }
};

}  // namespace

Embedding::Embedding(int64_t rows, int64_t dim) {
  weight = register_parameter("weight", at::zeros({rows, dim}));
}

Tensor Embedding::forward(const Tensor& indices) const {
  return weight.is_cuda() ? EmbeddedRows::apply(weight, indices) : at::embedding(weight, indices);
}

Tensor Embedding::forward(const Tensor& indices, const EmbeddingUse& use, const Pass& pass) const {
  TORCH_CHECK_VALUE(indices.dim() == 2, "embedding: indices are ", indices.sizes(),
                    "; wanted [batch, length]");
  TORCH_CHECK_VALUE(!use.positions.defined() ||
                        use.positions.sizes() == at::IntArrayRef({indices.size(1), weight.size(1)}),
                    "embedding: positions are ", use.positions.sizes(), "; wanted [",
                    indices.size(1), ", ", weight.size(1), "], a row for every token");
  if (cuda::has_embedding_kernel(weight, indices, use.positions)) {
    return EmbeddedTokens::apply(weight, indices, or_nothing(use.positions), use.scale,
                                 active_site(use.site, pass), or_nothing(pass.dropout_seed));
  }
  Tensor x = forward(indices);
  if (use.scale != 1) x = x * use.scale;
  if (use.positions.defined()) x = x + use.positions;
  return dropout(x, use.site, pass);
}

}  // namespace fmmformer
