// SPDX-License-Identifier: Apache-2.0
#include "analysis/rank.h"

#include <gtest/gtest.h>
#include <torch/types.h>

namespace fmmformer::analysis {
namespace {

using torch::Tensor;

Tensor random_matrix(int64_t rows, int64_t columns) {
  torch::manual_seed(3);
  return torch::randn({rows, columns}, torch::kDouble);
}

TEST(Rank, OnlyTheBandGoes) {
  const Tensor matrix = random_matrix(12, 12), rest = without_band(matrix, 3);
  for (int64_t i = 0; i < 12; ++i) {
    for (int64_t j = 0; j < 12; ++j) {
      EXPECT_EQ(rest[i][j].item<double>(), std::abs(i - j) < 3 ? 0 : matrix[i][j].item<double>());
    }
  }
  EXPECT_TRUE(torch::equal(without_band(matrix, 0), matrix));
  EXPECT_EQ(without_band(matrix, 12).abs().max().item<double>(), 0);
}

TEST(Rank, ABandAloneLeavesNothing) {
  const Tensor band = random_matrix(30, 30).tril().triu(-4);  // i - j < 5
  EXPECT_EQ(numerical_rank(singular_values(without_band(band, 5))).absolute, 0);
  EXPECT_EQ(numerical_rank(singular_values(without_band(band, 5))).relative, 0);
  // Without one diagonal less, what is left is one diagonal: a row for each of its entries.
  EXPECT_EQ(numerical_rank(singular_values(without_band(band, 4))).absolute, 26);
}

TEST(Rank, IsThatOfAProductOfThinMatrices) {
  for (const int64_t rank : {1, 2, 7}) {
    const Tensor matrix = torch::matmul(random_matrix(40, rank), random_matrix(rank, 40).flip(1));
    const auto found = numerical_rank(singular_values(matrix));
    EXPECT_EQ(found.absolute, rank);
    EXPECT_EQ(found.relative, rank);
  }
}

TEST(Rank, ThresholdsAreAbsoluteAndRelativeToTheLargest) {
  const std::vector<double> values = {1e3, 1, 1e-2, 2e-6, 1e-6, 1e-9};
  EXPECT_EQ(numerical_rank(values).absolute, 4);  // above, not at
  EXPECT_EQ(numerical_rank(values).relative, 3);
  EXPECT_EQ(numerical_rank({}).absolute, 0);
}

TEST(Rank, TheBoundIsWhatFullMatricesReach) {
  for (const int64_t k : {0, 1, 5, 11, 12, 20}) {
    // A random triangle has singular values near 0, one of ones has none below 1/2.
    const Tensor full = random_matrix(20, 20), ones = torch::ones({20, 20}, torch::kDouble);
    EXPECT_EQ(numerical_rank(singular_values(without_band(ones.tril(), k))).absolute,
              rank_bound(20, k, /*causal=*/true))
        << k;
    EXPECT_EQ(numerical_rank(singular_values(without_band(full, k))).absolute,
              rank_bound(20, k, /*causal=*/false))
        << k;
  }
  EXPECT_EQ(rank_bound(256, 5, true), 251);
  EXPECT_EQ(rank_bound(256, 20, true), 236);
  EXPECT_EQ(rank_bound(10, 30, true), 0);
}

TEST(Rank, EveryBandSeesEveryMatrix) {
  std::vector<BandRanks> bands = {{.bandwidth = 0}, {.bandwidth = 4}};
  for (const int64_t length : {10, 10, 14}) add_matrix(random_matrix(length, length).tril(), bands);
  ASSERT_EQ(bands[1].ranks.size(), 3u);
  EXPECT_EQ(bands[0].ranks[2].absolute, 14);
  EXPECT_EQ(bands[1].ranks[2].absolute, 10);
  const auto typical = typical_singular_values(bands[1]);
  ASSERT_EQ(typical.size(), 14u);  // the largest matrix's
  EXPECT_TRUE(std::ranges::is_sorted(std::span(typical).first(10), std::greater{}));
}

}  // namespace
}  // namespace fmmformer::analysis
