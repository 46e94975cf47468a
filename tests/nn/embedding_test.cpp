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

/// A table and positions with gradients, and what they are used with.
struct Parts {
  explicit Parts(at::ScalarType type, int64_t columns) : embedding(kRows, columns) {
    torch::manual_seed(5);
    torch::NoGradGuard no_gradient;
    embedding.weight.normal_();
    embedding.to(at::kCUDA, type);
    embedding.weight.set_requires_grad(true);
    use.scale = 3;
    use.site = {.probability = 0.25, .site = 7};
    use.positions = torch::randn({kLength, columns}, embedding.weight.options());
    use.positions.set_requires_grad(true);
    pass = {.training = true,
            .dropout_seed = torch::full({1}, 42, embedding.weight.options().dtype(torch::kLong))};
    tokens = torch::randint(kRows, {3, kLength}, pass.dropout_seed.options());
  }

  static constexpr int64_t kRows = 11, kLength = 37;
  Embedding embedding;
  EmbeddingUse use;
  Pass pass;
  Tensor tokens;
};

struct Results {
  Tensor out, table, positions;
};
Results results_of(Parts& parts, const Tensor& out) {
  parts.embedding.weight.mutable_grad() = parts.use.positions.mutable_grad() = Tensor();
  torch::manual_seed(6);
  out.backward(torch::randn(out.sizes(), torch::kFloat).to(out.options()));
  return {out.detach(), parts.embedding.weight.grad(), parts.use.positions.grad()};
}

TEST(Embedding, OnAGpuOneSweepHasTheBitsOfRowsPositionsAndDropoutOneAfterAnother) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t columns : {8, 64, 72, 12}) {  // the last has no kernel
      Parts parts(type, columns);
      const Tensor rows = parts.embedding.forward(parts.tokens);
      const Results wanted =
          results_of(parts, dropout(rows * 3.0 + parts.use.positions, parts.use.site, parts.pass));
      const Results ours =
          results_of(parts, parts.embedding.forward(parts.tokens, parts.use, parts.pass));
      EXPECT_TRUE(torch::equal(ours.out, wanted.out)) << type << ", " << columns;
      EXPECT_TRUE(torch::equal(ours.table, wanted.table)) << type << ", " << columns;
      EXPECT_TRUE(torch::equal(ours.positions, wanted.positions)) << type << ", " << columns;
    }
  }
}

TEST(Embedding, OnAGpuScoringDropsNothingAndNeedsNeitherPositionsNorSeed) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  Parts parts(at::kBFloat16, 64);
  parts.use.positions = Tensor();
  EXPECT_TRUE(torch::equal(parts.embedding.forward(parts.tokens, parts.use, Pass{}),
                           parts.embedding.forward(parts.tokens) * 3.0));
}

TEST(Embedding, PositionsOfAnotherNumberThanTheTokensAreAnError) {
  const Embedding embedding(4, 8);
  const Tensor tokens = torch::zeros({2, 3}, torch::kLong);
  for (const Tensor& positions : {torch::zeros({1, 8}), torch::zeros({2, 8}), torch::zeros({3, 4}),
                                  torch::zeros({1, 3, 8})}) {
    EXPECT_THROW(embedding.forward(tokens, {.positions = positions}, Pass{}), c10::ValueError)
        << positions.sizes();
  }
  EXPECT_NO_THROW(embedding.forward(tokens, {.positions = torch::zeros({3, 8})}, Pass{}));
}

// On a GPU the kernel stops, and with it the process's work there: no test survives that.
TEST(Embedding, OnTheCpuAnIndexThatTheTableDoesNotHaveIsAnError) {
  Embedding embedding(4, 8);
  EXPECT_THROW(embedding.forward(torch::tensor({{0, 4}}), {}, Pass{}), c10::Error);
}

}  // namespace
}  // namespace fmmformer
