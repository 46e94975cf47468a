// SPDX-License-Identifier: Apache-2.0
#include "analysis/band_energy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

namespace fmmformer::analysis {
namespace {

using torch::Tensor;

TEST(BandEnergy, AllOfAPureBandIsInsideIt) {
  const Tensor band = torch::rand({30, 30}).tril().triu(-4);
  const std::vector<int64_t> widths = {1, 4, 5, 30};
  const auto shares = band_shares(band, widths);
  EXPECT_LT(shares[0].mass, shares[1].mass);
  EXPECT_LT(shares[1].mass, 1);
  EXPECT_DOUBLE_EQ(shares[2].mass, 1);
  EXPECT_DOUBLE_EQ(shares[2].energy, 1);
  EXPECT_DOUBLE_EQ(shares[3].energy, 1);
}

TEST(BandEnergy, OfAConstantMatrixIsTheShareOfItsEntries) {
  const auto shares = band_shares(torch::full({10, 10}, 0.1), std::vector<int64_t>{0, 1, 3, 100});
  EXPECT_DOUBLE_EQ(shares[0].energy, 0);
  EXPECT_NEAR(shares[1].energy, 0.10, 1e-12);
  EXPECT_NEAR(shares[2].energy, 0.44, 1e-12);  // 10 + 2 (9 + 8)
  EXPECT_NEAR(shares[2].mass, 0.44, 1e-12);
  EXPECT_DOUBLE_EQ(shares[3].mass, 1);
}

TEST(BandEnergy, SquaresWeighLargeEntriesMore) {
  Tensor matrix = torch::ones({8, 8}, torch::kDouble).tril();
  matrix.diagonal().fill_(-3);  // signs do not matter
  const auto shares = band_shares(matrix, std::vector<int64_t>{1});
  EXPECT_NEAR(shares[0].mass, 24.0 / 52, 1e-12);
  EXPECT_NEAR(shares[0].energy, 72.0 / 100, 1e-12);
}

TEST(BandEnergy, AMatrixOfZerosHasNone) {
  EXPECT_EQ(band_shares(torch::zeros({4, 4}), std::vector<int64_t>{4})[0].energy, 0);
}

TEST(BandEnergy, UsualWidthsEndWithTheLength) {
  EXPECT_THAT(usual_bandwidths(256),
              ::testing::ElementsAre(1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 256));
  EXPECT_THAT(usual_bandwidths(2), ::testing::ElementsAre(1, 2));
  EXPECT_THAT(usual_bandwidths(1), ::testing::ElementsAre(1));
}

}  // namespace
}  // namespace fmmformer::analysis
