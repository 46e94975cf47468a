// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/attention/full_attention.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <functional>

#include "fmmformer/attention/fmm_reference.h"

namespace fmmformer {
namespace {

TEST(FullAttention, EqualsABandWiderThanTheSequence) {
  const auto draw = [] { return torch::randn({2, 11, 3, 4}, torch::kDouble); };
  AttentionInputs inputs{draw(), draw(), draw()};
  for (const bool masked : {false, true}) {
    if (masked) {
      inputs.token_mask = torch::arange(11).remainder(3).ne(1).expand({2, 11});
      inputs.k.select(1, 1).fill_(std::nan(""));
    }
    for (const bool causal : {false, true}) {
      const at::Tensor expected =
          fmm_attention_reference(inputs, {}, {.window = Window{20, 20}, .causal = causal});
      EXPECT_TRUE(at::allclose(full_attention(inputs, {.causal = causal}), expected))
          << masked << causal;
    }
  }
}

/// out and the gradients of q, k, v on the CPU in double, for the gradient `grad` of out.
std::vector<at::Tensor> results(const std::function<at::Tensor(const AttentionInputs&)>& attention,
                                AttentionInputs inputs, const at::Tensor& grad) {
  for (at::Tensor* x : {&inputs.q, &inputs.k, &inputs.v}) *x = x->detach().requires_grad_();
  const at::Tensor out = attention(inputs);
  out.backward(grad.to(out.options()));
  std::vector<at::Tensor> all = {out.detach(), inputs.q.grad(), inputs.k.grad(), inputs.v.grad()};
  for (at::Tensor& one : all) one = one.to(torch::kCPU, torch::kDouble);
  return all;
}

TEST(FullAttention, OnAGpuIsTheReferenceWithAnyMaskAndTheSameBitsInEveryRun) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  const auto draw = [] { return torch::randn({2, 150, 3, 32}, torch::kBFloat16); };
  AttentionInputs inputs{draw(), draw(), draw()};
  const at::Tensor grad = draw();
  for (const bool masked : {false, true}) {
    if (masked) {
      inputs.token_mask = torch::arange(150).remainder(3).ne(0).expand({2, 150});
      for (at::Tensor* x : {&inputs.q, &inputs.k, &inputs.v}) x->select(1, 3).fill_(std::nan(""));
    }
    for (const bool causal : {false, true}) {
      AttentionInputs exact = inputs, on_gpu = inputs;
      for (at::Tensor* x : {&exact.q, &exact.k, &exact.v}) *x = x->to(torch::kDouble);
      for (at::Tensor* x : {&on_gpu.q, &on_gpu.k, &on_gpu.v}) *x = x->to(torch::kCUDA);
      if (masked) on_gpu.token_mask = inputs.token_mask->to(torch::kCUDA);
      const auto ours = [&](const AttentionInputs& x) { return full_attention(x, {causal}); };
      const auto reference = [&](const AttentionInputs& x) {
        return fmm_attention_reference(x, {}, {.window = Window{150, 150}, .causal = causal});
      };
      const auto expected = results(reference, exact, grad), got = results(ours, on_gpu, grad);
      for (size_t i = 0; i < got.size(); ++i) {
        const double error = ((got[i] - expected[i]).norm() / expected[i].norm()).item<double>();
        EXPECT_LT(error, 1e-2) << "tensor " << i << " masked " << masked << " causal " << causal;
      }
      for (int run = 0; run < 5; ++run) {
        const auto again = results(ours, on_gpu, grad);
        for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(torch::equal(again[i], got[i]));
      }
    }
  }
}

}  // namespace
}  // namespace fmmformer
