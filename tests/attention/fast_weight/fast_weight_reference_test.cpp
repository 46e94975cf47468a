// SPDX-License-Identifier: Apache-2.0
// The reference itself, against results that are known by hand.
#include "fmmformer/attention/fast_weight_reference.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include "fmmformer/attention/fmm_reference.h"

namespace fmmformer {
namespace {

at::Tensor tokens(int64_t length, int64_t dim) {
  return torch::randn({1, length, 2, dim}, torch::kDouble);
}

// Features are the numbers themselves, and nothing is divided.
FastWeightOptions bare() {
  return {.feature_map = FeatureMap::kIdentity,
          .unit_features = false,
          .normaliser = FastWeightNormaliser::kNone};
}

TEST(FastWeightReference, OrthonormalKeysAndOpenGatesAreAnExactLookUp) {
  const at::Tensor keys = torch::eye(4, torch::kDouble).view({1, 4, 1, 4});
  const at::Tensor v = torch::randn({1, 4, 1, 3}, torch::kDouble);
  const at::Tensor queries = keys.flip(1);  // the last asks for the first
  const at::Tensor out = fast_weight_attention_reference(
      {queries, keys, v, torch::ones({1, 4, 1}, torch::kDouble)}, bare());
  EXPECT_TRUE(at::allclose(out.select(1, 3), v.select(1, 0)));
  EXPECT_TRUE(at::allclose(out.select(1, 0), torch::zeros({1, 1, 3}, torch::kDouble)));
}

TEST(FastWeightReference, AKeyThatComesAgainReplacesItsValue) {
  const at::Tensor key = torch::zeros({1, 2, 1, 4}, torch::kDouble);
  key.select(3, 1).fill_(1);
  const at::Tensor v = torch::randn({1, 2, 1, 3}, torch::kDouble);
  const at::Tensor gates = torch::ones({1, 2, 1}, torch::kDouble);
  EXPECT_TRUE(at::allclose(fast_weight_attention_reference({key, key, v, gates}, bare()), v));
  // A gate that is half open goes half of the way.
  const at::Tensor half = torch::tensor({1.0, 0.5}, torch::kDouble).view({1, 2, 1});
  EXPECT_TRUE(
      at::allclose(fast_weight_attention_reference({key, key, v, half}, bare()).select(1, 1),
                   (v.select(1, 0) + v.select(1, 1)) / 2));
}

TEST(FastWeightReference, OrthogonalKeysReadNothingSoThatTheSumRuleRemains) {
  // With nothing to erase, the rule adds beta v: causal linear attention over gated values.
  const at::Tensor keys = torch::eye(8, torch::kDouble).view({1, 8, 1, 8});
  const at::Tensor q = torch::rand({1, 8, 1, 8}, torch::kDouble);
  const at::Tensor v = torch::randn({1, 8, 1, 3}, torch::kDouble);
  const at::Tensor beta = torch::rand({1, 8, 1}, torch::kDouble);
  const at::Tensor sum_rule = fmm_attention_reference(
      {q, keys, v * beta.unsqueeze(-1)}, {},
      {.causal = true, .feature_maps = {FeatureMap::kIdentity}, .normaliser = Normaliser::kNone});
  EXPECT_TRUE(at::allclose(fast_weight_attention_reference({q, keys, v, beta}, bare()), sum_rule));
}

TEST(FastWeightReference, TheOutputIsDividedByTheSumOfUngatedKeys) {
  const at::Tensor q = tokens(9, 4), k = tokens(9, 4), v = tokens(9, 3);
  const at::Tensor beta = torch::rand({1, 9, 2}, torch::kDouble);
  FastWeightOptions options{.normaliser = FastWeightNormaliser::kNone, .far_scale = 0.5};
  const at::Tensor raw = fast_weight_attention_reference({q, k, v, beta}, options);
  options.normaliser = FastWeightNormaliser::kOutput;
  const auto unit = [](const at::Tensor& x) {
    const at::Tensor phi = at::elu(x) + 1;
    return phi / phi.sum(-1, true);
  };
  const at::Tensor norms = (unit(q) * unit(k).cumsum(1)).sum(-1, true) + 1e-5;
  EXPECT_TRUE(at::allclose(fast_weight_attention_reference({q, k, v, beta}, options), raw / norms));
}

TEST(FastWeightReference, TheFirstKeyIsNotDividedByAnEmptySum) {
  const at::Tensor q = tokens(1, 4), k = tokens(1, 4), v = tokens(1, 3);
  const at::Tensor beta = torch::ones({1, 1, 2}, torch::kDouble);
  const FastWeightOptions options{.normaliser = FastWeightNormaliser::kOutputAndKey, .eps = 1e-9};
  EXPECT_TRUE(at::allclose(fast_weight_attention_reference({q, k, v, beta}, options), v, 1e-6));
}

}  // namespace
}  // namespace fmmformer
