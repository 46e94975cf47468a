// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/types.h>

#include "fmmformer/nn/layers.h"

namespace fmmformer {
namespace {

using torch::Tensor;

/// The gradient of a table from rows `grad` of the tokens `indices`.
Tensor gradient_of(Embedding& embedding, const Tensor& indices, const Tensor& grad) {
  embedding.weight.mutable_grad() = Tensor();
  embedding.forward(indices).backward(grad);
  return embedding.weight.grad();
}

Tensor exact_gradient(int64_t rows, const Tensor& indices, const Tensor& grad) {
  Tensor sum = torch::zeros({rows, grad.size(-1)}, grad.options().dtype(torch::kDouble));
  return sum.index_add_(0, indices.flatten(), grad.flatten(0, -2).to(torch::kDouble));
}

/// Twice what rounding a sum once to bf16 costs: torch, which has the tables that our kernel leaves
/// to it, also rounds parts of a sum.
constexpr double kAllowance = 4e-3;

void expect_exact(int64_t rows, int64_t columns, const Tensor& indices) {
  const at::TensorOptions options = at::device(at::kCUDA).dtype(at::kBFloat16);
  Embedding embedding(rows, columns);
  embedding.to(at::kCUDA, at::kBFloat16);
  std::vector<int64_t> sizes = indices.sizes().vec();
  sizes.push_back(columns);
  const Tensor grad = torch::randn(sizes, options), tokens = indices.to(at::kCUDA);
  const Tensor ours = gradient_of(embedding, tokens, grad);
  const Tensor exact = exact_gradient(rows, indices, grad.cpu());
  const double error =
      ((ours.cpu().to(torch::kDouble) - exact).norm() / exact.norm().clamp_min(1e-9))
          .item<double>();
  EXPECT_LT(error, kAllowance) << rows << " x " << columns << ", " << indices.sizes();
  EXPECT_TRUE(torch::equal(gradient_of(embedding, tokens, grad), ours));
}

TEST(Embedding, OnAGpuEveryShapeHasTheExactGradientAndTheSameBitsAgain) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 8}, {11, 128}, {32, 64}, {512, 64}, {513, 72}, {1500, 24}, {40, 7}, {5000, 256}}) {
    for (const int64_t tokens : {1, 15, 64, 65, 5000}) {
      expect_exact(rows, columns, torch::randint(rows, {3, tokens}));
    }
    // One token owns nearly all rows.
    Tensor skewed = torch::zeros({4, 5000}, torch::kLong);
    skewed.select(1, 17).fill_(rows - 1);
    expect_exact(rows, columns, skewed);
  }
}

}  // namespace
}  // namespace fmmformer
