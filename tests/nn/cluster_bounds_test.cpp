// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/nn/cluster_bounds.h"

#include <gtest/gtest.h>

#include <cmath>

#include "nn/helpers.h"

namespace fmmformer {
namespace {

using torch::Tensor;

struct Output {
  std::shared_ptr<AdaptiveSoftmax> softmax;
  Tensor table;
};

/// Clusters of 3, 40 and 957 words.
Output output(int64_t dim, double spread) {
  torch::manual_seed(1);
  Output made{std::make_shared<AdaptiveSoftmax>(1050, dim, std::vector<int64_t>{50, 53, 93}),
              spread * torch::randn({1050, dim})};
  at::NoGradGuard no_gradients;
  made.softmax->bias.normal_();
  return made;
}

Tensor tensor_of(const std::vector<float>& values) { return torch::tensor(values); }

TEST(ClusterBounds, WhatIsComputedLiesBetweenThem) {
  at::NoGradGuard no_gradients;
  for (const int64_t dim : {1, 7, 32, 128, 515}) {
    for (const double spread : {0.0, 0.02, 0.3, 10.0}) {
      const auto [softmax, table] = output(dim, spread);
      const auto bounds = ClusterBounds::of(softmax, table);
      for (int draw = 0; draw < 5; ++draw) {
        const Tensor hidden = torch::randn({1, dim});
        ClusterBounds::Token token(*bounds, hidden);
        for (int64_t i = 0; i < softmax->clusters(); ++i) {
          const Tensor log_p = softmax->cluster_log_probabilities(i, hidden, table)[0] - 2.5;
          double width = 1e9;
          for (const bool sharp : {false, true}) {
            if (sharp) token.sharpen(i, 0.5);
            const auto found = token.log_probabilities(i, -2.5);
            const Tensor low = tensor_of(found.low), high = tensor_of(found.high);
            ASSERT_EQ(low.sizes(), log_p.sizes());
            EXPECT_TRUE(low.le(log_p).all().item<bool>()) << dim << " " << spread << " " << i;
            EXPECT_TRUE(high.ge(log_p).all().item<bool>()) << dim << " " << spread << " " << i;
            // Of the likeliest word: sharp bounds are no wider.
            const Tensor best = log_p.argmax();
            const double now = (high - low).index_select(0, best.view({1})).item<double>();
            EXPECT_LE(now, width + 1e-5);
            width = now;
          }
        }
      }
    }
  }
}

TEST(ClusterBounds, AreNarrowForWeightsAsTrainedModelsHaveThem) {
  at::NoGradGuard no_gradients;
  const auto [softmax, table] = output(128, 0.3);
  const auto bounds = ClusterBounds::of(softmax, table);
  ClusterBounds::Token token(*bounds, torch::randn({1, 128}));
  const auto rough = token.log_probabilities(2, 0);
  EXPECT_LT((tensor_of(rough.high) - tensor_of(rough.low)).max().item<double>(), 2);
  token.sharpen(2, 0.5);
  const auto sharp = token.log_probabilities(2, 0);
  const Tensor width = tensor_of(sharp.high) - tensor_of(sharp.low);
  const Tensor likely = std::get<1>(tensor_of(sharp.high).topk(20));
  EXPECT_LT(width.index_select(0, likely).max().item<double>(), 0.1);
  EXPECT_GT(bounds->memory_bytes(), 957 * 128);
}

TEST(ClusterBounds, ThereAreNoneWithoutAKernelOrOfWeightsThatAreNoNumbers) {
  at::NoGradGuard no_gradients;
  const auto [softmax, table] = output(32, 0.3);
  EXPECT_EQ(ClusterBounds::of(softmax, table.to(torch::kDouble)), nullptr);
  for (const double broken : {std::nan(""), HUGE_VAL}) {
    const Tensor damaged = table.clone();
    damaged[60][3] = broken;
    const auto bounds = ClusterBounds::of(softmax, damaged);
    ClusterBounds::Token token(*bounds, torch::randn({1, 32}));
    EXPECT_TRUE(token.log_probabilities(1, 0).high.empty());
    EXPECT_FALSE(token.log_probabilities(2, 0).high.empty());
  }
}

}  // namespace
}  // namespace fmmformer
