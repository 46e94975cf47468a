// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/nn/linear_cross_entropy.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "nn/cuda/cross_entropy_cuda.h"

namespace fmmformer {

using at::Tensor;

namespace {

constexpr int64_t kChunkLogits = 1 << 24;  // 64 MiB of fp32: large products, small beside a model
constexpr int64_t kFusedChunkLogits = 1 << 26;  // 128 MiB of bf16: a GPU wants larger products

Tensor logits_of(const Tensor& hidden, const Tensor& weight, const Tensor& bias) {
  const Tensor logits = at::addmm(bias, hidden, weight.t());
  return logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
}

/// work(first token, tokens) for chunks of at most `logits` logits.
template <typename Work>
void for_each_chunk(int64_t tokens, int64_t classes, int64_t logits, const Work& work) {
  const int64_t chunk = std::max<int64_t>(1, logits / classes);
  for (int64_t begin = 0; begin < tokens; begin += chunk) {
    work(begin, std::min(chunk, tokens - begin));
  }
}

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& hidden,
                        const Tensor& weight, const Tensor& bias, const Tensor& targets) {
    std::vector<Tensor> losses, sums;
    for_each_chunk(hidden.size(0), weight.size(0), kChunkLogits, [&](int64_t begin, int64_t count) {
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
    for_each_chunk(hidden.size(0), weight.size(0), kChunkLogits, [&](int64_t begin, int64_t count) {
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

/// The same on a GPU in half precision, by the kernels of nn/cuda: logits leave the product in half
/// precision and are read once forward, read and written once backward. Classes are filled up to
/// groups of eight, without which products are slow. Weight gradients are summed over chunks in
/// fp32.
class FusedChunks {
 public:
  FusedChunks(const Tensor& hidden, const Tensor& weight, const Tensor& bias, const Tensor& targets)
      : hidden_(hidden.contiguous()), targets_(targets.contiguous()), classes_(weight.size(0)) {
    const int64_t missing = (kGroup - classes_ % kGroup) % kGroup;
    weight_ = missing == 0 ? weight : at::constant_pad_nd(weight, {0, 0, 0, missing});
    bias_ = missing == 0 ? bias : at::constant_pad_nd(bias, {0, missing});
  }

  /// losses and sums: fp32 [T]
  void losses(const Tensor& losses, const Tensor& sums) const {
    with_logits([&](const cuda::Logits& logits, int64_t begin, int64_t count) {
      cuda::cross_entropy_losses(logits, losses.narrow(0, begin, count),
                                 sums.narrow(0, begin, count));
    });
  }

  torch::autograd::variable_list gradients(const Tensor& sums, const Tensor& scale) const {
    const auto fp32 = hidden_.options().dtype(at::kFloat);
    const Tensor grad_hidden = at::empty_like(hidden_),
                 grad_weight = at::zeros(weight_.sizes(), fp32);
    std::vector<Tensor> bias_parts;
    with_logits([&](const cuda::Logits& logits, int64_t begin, int64_t count) {
      bias_parts.push_back(at::empty({cuda::cross_entropy_parts(count), weight_.size(0)}, fp32));
      cuda::cross_entropy_gradients_(logits, sums.narrow(0, begin, count),
                                     scale.narrow(0, begin, count), bias_parts.back());
      Tensor slot = grad_hidden.narrow(0, begin, count), sum = grad_weight;
      at::mm_out(slot, logits.values, weight_);
      at::addmm_out(sum, grad_weight, logits.values.t(), hidden_.narrow(0, begin, count),
                    at::kFloat);
    });
    const auto type = hidden_.scalar_type();
    return {grad_hidden, grad_weight.narrow(0, 0, classes_).to(type),
            cuda::summed_parts(at::cat(bias_parts), type).narrow(0, 0, classes_), Tensor()};
  }

 private:
  static constexpr int64_t kGroup = 8;

  template <typename Work>
  void with_logits(const Work& work) const {
    const int64_t tokens = hidden_.size(0), columns = weight_.size(0);
    const int64_t most = std::min(tokens, std::max<int64_t>(1, kFusedChunkLogits / columns));
    const Tensor memory = at::empty({most, columns}, hidden_.options());
    for_each_chunk(tokens, columns, kFusedChunkLogits, [&](int64_t begin, int64_t count) {
      Tensor logits = memory.narrow(0, 0, count);
      at::addmm_out(logits, bias_, hidden_.narrow(0, begin, count), weight_.t());
      work(cuda::Logits{logits, classes_, targets_.narrow(0, begin, count)}, begin, count);
    });
  }

  Tensor hidden_, weight_, bias_, targets_;
  int64_t classes_;
};

struct FusedLinearCrossEntropy : torch::autograd::Function<FusedLinearCrossEntropy> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& hidden,
                        const Tensor& weight, const Tensor& bias, const Tensor& targets) {
    const auto fp32 = hidden.options().dtype(at::kFloat);
    const Tensor losses = at::empty({hidden.size(0)}, fp32), sums = at::empty_like(losses);
    FusedChunks(hidden, weight, bias, targets).losses(losses, sums);
    context->save_for_backward({hidden, weight, bias, targets, sums});
    return losses;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const auto saved = context->get_saved_variables();
    return FusedChunks(saved[0], saved[1], saved[2], saved[3])
        .gradients(saved[4], grads[0].contiguous());
  }
};

}  // namespace

Tensor linear_cross_entropy(const Tensor& hidden, const Tensor& weight, const Tensor& bias,
                            const Tensor& targets) {
  TORCH_CHECK_VALUE(hidden.dim() == 2 && hidden.size(1) == weight.size(1),
                    "linear_cross_entropy: hidden is ", hidden.sizes(), " and weight ",
                    weight.sizes(), "; wanted [T, D] and [C, D]");
  // As all others, losses of half precision are fp32.
  if (hidden.size(0) == 0) {
    return hidden.sum(1, /*keepdim=*/false,
                      hidden.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  }
  if (cuda::has_cross_entropy(hidden, weight, bias)) {
    return FusedLinearCrossEntropy::apply(hidden, weight, bias, targets);
  }
  return LinearCrossEntropy::apply(hidden, weight, bias, targets);
}

}  // namespace fmmformer
