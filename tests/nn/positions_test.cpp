// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/nn/positions.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>

namespace fmmformer {
namespace {

TEST(Positions, FollowTheirFormulas) {
  const torch::Tensor interleaved = interleaved_sinusoids(512, 128),
                      halved = halved_sinusoids(512, 128);
  EXPECT_EQ(interleaved.sizes(), (std::vector<int64_t>{512, 128}));
  for (const int64_t p : {0, 1, 37, 511}) {
    for (const int64_t m : {0, 1, 30, 63}) {
      const double angle =
          static_cast<double>(p) * std::pow(10000.0, -2.0 * static_cast<double>(m) / 128);
      EXPECT_NEAR(interleaved[p][2 * m].item<double>(), std::sin(angle), 1e-7);
      EXPECT_NEAR(interleaved[p][2 * m + 1].item<double>(), std::cos(angle), 1e-7);
      EXPECT_NEAR(halved[p][m].item<double>(), std::sin(angle), 1e-7);
      EXPECT_NEAR(halved[p][64 + m].item<double>(), std::cos(angle), 1e-7);
    }
  }
  EXPECT_THROW(halved_sinusoids(4, 3), c10::ValueError);
}

}  // namespace
}  // namespace fmmformer
