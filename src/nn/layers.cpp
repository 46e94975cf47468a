// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/nn/layers.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "attention/deterministic_scope.h"
#include "nn/cuda/embedding_cuda.h"
#include "nn/layer_norm.h"
#include "nn/linear.h"

namespace fmmformer {

using at::Tensor;

namespace {

constexpr double kNormEps = 1e-5;

}  // namespace

Linear::Linear(int64_t in, int64_t out, bool with_bias) {
  weight = register_parameter("weight", at::zeros({out, in}));
  if (with_bias) bias = register_parameter("bias", at::zeros({out}));
}

Tensor Linear::forward(const Tensor& x) const { return linear(x, {weight, bias}); }

Tensor Linear::product(const Tensor& x) const {
  return x.size(0) == 1 ? linear(x, {weight, Tensor()}) : at::mm(x, weight.t());
}

LayerNorm::LayerNorm(int64_t dim) {
  weight = register_parameter("weight", at::ones({dim}));
  bias = register_parameter("bias", at::zeros({dim}));
}

Tensor LayerNorm::forward(const Tensor& x) const { return layer_norm(x, weight, bias, kNormEps); }

TwoUses LayerNorm::forward_twice(const Tensor& x) const {
  return layer_norm_twice(x, weight, bias, kNormEps);
}

Embedding::Embedding(int64_t rows, int64_t dim) {
  weight = register_parameter("weight", at::zeros({rows, dim}));
}

namespace {

/// at::embedding with a gradient that has the same bits in every run, on a GPU too.
struct EmbeddedRows : torch::autograd::Function<EmbeddedRows> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& weight,
                        const Tensor& indices) {
    context->save_for_backward({indices});
    context->saved_data["rows"] = weight.size(0);
    return at::embedding(weight, indices);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const Tensor indices = context->get_saved_variables()[0];
    const int64_t rows = context->saved_data["rows"].toInt();
    if (cuda::has_embedding_gradient(grads[0], rows))
      return {cuda::embedding_gradient(grads[0], indices, rows), Tensor()};
    const DeterministicScope same_bits;
    return {at::embedding_dense_backward(grads[0], indices, rows, /*padding_idx=*/-1,
                                         /*scale_grad_by_freq=*/false),
            Tensor()};
  }
};

}  // namespace

Tensor Embedding::forward(const Tensor& indices) const {
  return weight.is_cuda() ? EmbeddedRows::apply(weight, indices) : at::embedding(weight, indices);
}

}  // namespace fmmformer
