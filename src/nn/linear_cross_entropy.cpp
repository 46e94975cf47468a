// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/nn/linear_cross_entropy.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace fmmformer {

using at::Tensor;

namespace {

constexpr int64_t kChunkLogits = 1 << 24;  // 64 MiB of fp32: large products, small beside a model

int64_t chunk_tokens(int64_t classes) { return std::max<int64_t>(1, kChunkLogits / classes); }

Tensor logits_of(const Tensor& hidden, const Tensor& weight, const Tensor& bias) {
  const Tensor logits = at::addmm(bias, hidden, weight.t());
  return logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
}

template <typename Work>
void for_each_chunk(int64_t tokens, int64_t classes, const Work& work) {
  const int64_t chunk = chunk_tokens(classes);
  for (int64_t begin = 0; begin < tokens; begin += chunk) {
    work(begin, std::min(chunk, tokens - begin));
  }
}

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& hidden,
                        const Tensor& weight, const Tensor& bias, const Tensor& targets) {
    std::vector<Tensor> losses, sums;
    for_each_chunk(hidden.size(0), weight.size(0), [&](int64_t begin, int64_t count) {
      const Tensor logits = logits_of(hidden.narrow(0, begin, count), weight, bias);
      const Tensor sum = at::logsumexp(logits, 1);
      const Tensor own = logits.gather(1, targets.narrow(0, begin, count).unsqueeze(1)).squeeze(1);
      losses.push_back(sum - own);
      sums.push_back(sum);
    });
    context->save_for_backward({hidden, weight, bias, targets, at::cat(sums)});
    return at::cat(losses);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = context->get_saved_variables();
    const Tensor &hidden = saved[0], &weight = saved[1], &bias = saved[2], &targets = saved[3];
    Tensor grad_hidden = at::empty_like(hidden), grad_weight = at::zeros_like(weight),
           grad_bias = at::zeros_like(bias);
    for_each_chunk(hidden.size(0), weight.size(0), [&](int64_t begin, int64_t count) {
      const Tensor part = hidden.narrow(0, begin, count);
      const Tensor scale = grads[0].narrow(0, begin, count).unsqueeze(1);
      Tensor grad = logits_of(part, weight, bias);  // becomes softmax, then the logits' gradient
      grad.sub_(saved[4].narrow(0, begin, count).unsqueeze(1)).exp_().mul_(scale);
      grad.scatter_add_(1, targets.narrow(0, begin, count).unsqueeze(1), -scale);
      grad = grad.to(hidden.scalar_type());
      Tensor slot = grad_hidden.narrow(0, begin, count);
      at::mm_out(slot, grad, weight);
      grad_weight.addmm_(grad.t(), part);
      grad_bias.add_(grad.sum(0));
    });
    return {grad_hidden, grad_weight, grad_bias, Tensor()};
  }
};

}  // namespace

Tensor linear_cross_entropy(const Tensor& hidden, const Tensor& weight, const Tensor& bias,
                            const Tensor& targets) {
  TORCH_CHECK_VALUE(hidden.dim() == 2 && hidden.size(1) == weight.size(1),
                    "linear_cross_entropy: hidden is ", hidden.sizes(), " and weight ",
                    weight.sizes(), "; wanted [T, D] and [C, D]");
  if (hidden.size(0) == 0) return hidden.sum(1);
  return LinearCrossEntropy::apply(hidden, weight, bias, targets);
}

}  // namespace fmmformer
