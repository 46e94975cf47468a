// SPDX-License-Identifier: Apache-2.0
// The reference itself, against results that are known by hand.
#include "fmmformer/attention/fmm_reference.h"

#include <gtest/gtest.h>
#include <torch/types.h>

namespace fmmformer {
namespace {

at::Tensor random_rows(int64_t length, int64_t dim) {
  return torch::randn({1, length, 2, dim}, torch::kDouble);
}

TEST(FmmReference, DiagonalBandReturnsTheValues) {
  const at::Tensor q = random_rows(9, 4), k = random_rows(9, 4), v = random_rows(9, 3);
  EXPECT_TRUE(at::allclose(fmm_attention_reference({q, k, v}, {}, {.window = Window{0, 0}}), v));
}

TEST(FmmReference, BandWiderThanTheSequenceIsFullAttention) {
  const at::Tensor q = random_rows(9, 4), k = random_rows(9, 4), v = random_rows(9, 3);
  const at::Tensor full =
      at::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
          .transpose(1, 2);
  EXPECT_TRUE(
      at::allclose(fmm_attention_reference({q, k, v}, {}, {.window = Window{100, 100}}), full));
}

TEST(FmmReference, ConstantFeaturesGiveTheRunningMeanOfTheValues) {
  const at::Tensor zeros = torch::zeros({1, 9, 2, 4}, torch::kDouble),
                   v = random_rows(9, 3);  // tanh(0) + 1 = 1
  const at::Tensor out = fmm_attention_reference(
      {zeros, zeros, v}, {}, {.causal = true, .feature_maps = {FeatureMap::kTanh1}, .eps = 0});
  const at::Tensor counts = torch::arange(1, 10, torch::kDouble).view({1, 9, 1, 1});
  EXPECT_TRUE(at::allclose(out, v.cumsum(1) / counts));
}

TEST(FmmReference, UnitFeaturesOfTheQueryCancelWithoutEps) {
  const at::Tensor q = random_rows(9, 4), k = random_rows(9, 4), v = random_rows(9, 3);
  FmmOptions options{.feature_maps = {FeatureMap::kElu}, .unit_features = true, .eps = 0};
  const at::Tensor out = fmm_attention_reference({q, k, v}, {}, options);
  const at::Tensor features = at::elu(q) + 1,
                   keys = (at::elu(k) + 1) / (at::elu(k) + 1).sum(-1, true);
  const at::Tensor weights =
      at::matmul(features.transpose(1, 2), keys.transpose(1, 2).transpose(-1, -2));
  const at::Tensor expected = at::matmul(weights, v.transpose(1, 2)) / weights.sum(-1, true);
  EXPECT_TRUE(at::allclose(out, expected.transpose(1, 2)));
}

}  // namespace
}  // namespace fmmformer
