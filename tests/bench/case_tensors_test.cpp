// SPDX-License-Identifier: Apache-2.0
#include "bench/case_tensors.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace fmmformer::bench {
namespace {

TEST(CaseTensors, TheSameSeedDrawsTheSameValuesAndAnotherSeedOthers) {
  const AttentionCase& plain = case_named("plain_causal");
  const CaseTensors first = make_inputs(plain, c10::kFloat, 1);
  EXPECT_TRUE(at::equal(first.inputs.q, make_inputs(plain, c10::kFloat, 1).inputs.q));
  EXPECT_FALSE(at::equal(first.inputs.q, make_inputs(plain, c10::kFloat, 2).inputs.q));
}

TEST(CaseTensors, LayoutsHoldTheSameValuesInAnotherOrder) {
  AttentionCase c = case_named("plain_causal");
  const CaseTensors rows = make_inputs(c, c10::kFloat, 1);
  c.layout = Layout::kBhnd;
  const CaseTensors heads = make_inputs(c, c10::kFloat, 1);
  EXPECT_TRUE(at::equal(rows.inputs.k, heads.inputs.k));
  EXPECT_TRUE(heads.inputs.k.transpose(1, 2).is_contiguous());
  EXPECT_TRUE(in_layout(rows, Layout::kBhnd).inputs.v.transpose(1, 2).is_contiguous());
}

TEST(CaseTensors, DeadTokensHoldWhatMustNotSpread) {
  const CaseTensors tensors = make_inputs(case_named("mask_random_causal"), c10::kFloat, 1);
  const at::Tensor live = tensors.inputs.token_mask->unsqueeze(-1).unsqueeze(-1);
  EXPECT_FALSE(at::isfinite(tensors.inputs.q).masked_select(~live).any().item<bool>());
  EXPECT_TRUE(at::isfinite(tensors.inputs.q).masked_select(live).all().item<bool>());
}

TEST(CaseTensors, SharedKeyHeadsHaveStrideZero) {
  const CaseTensors tensors = make_inputs(case_named("shared_key_heads_causal"), c10::kFloat, 1);
  EXPECT_EQ(tensors.inputs.k.stride(2), 0);
  EXPECT_EQ(tensors.inputs.k.size(2), tensors.inputs.q.size(2));
}

TEST(CaseTensors, WeightsAreFp32BesideHalfPrecisionAndSomeAreNegative) {
  const CaseTensors tensors = make_inputs(case_named("channel_weights_causal"), c10::kBFloat16, 1);
  EXPECT_EQ(tensors.weights.far_weight->scalar_type(), c10::kFloat);
  EXPECT_LT(tensors.weights.far_weight->min().item<float>(), 0);
  EXPECT_GT(tensors.weights.far_weight->max().item<float>(), 0.5);
}

TEST(CaseTensors, DoubleCopiesKeepTheRoundedValues) {
  const CaseTensors tensors = make_inputs(case_named("plain_causal"), c10::kBFloat16, 1);
  const CaseTensors exact = in_double(tensors);
  EXPECT_EQ(exact.inputs.q.scalar_type(), c10::kDouble);
  EXPECT_TRUE(at::equal(exact.inputs.q, tensors.inputs.q.to(at::kDouble)));
}

TEST(CaseTensors, EvaluateReturnsTheOutputAndAGradientPerLeaf) {
  const CaseTensors tensors = make_inputs(case_named("plain_causal"), c10::kDouble, 1);
  const auto only_values = [](const AttentionInputs& inputs, const BlendWeights&,
                              const FmmOptions&) { return inputs.v * 2; };
  const std::vector<NamedTensor> results = evaluate(only_values, tensors);
  ASSERT_EQ(results.size(), 6u);
  EXPECT_EQ(results[0].name, "out");
  EXPECT_EQ(results[1].name, "d_q");
  EXPECT_EQ(results[1].tensor.abs().max().item<double>(), 0);  // the output does not depend on it
  EXPECT_TRUE(at::equal(results[3].tensor, tensors.upstream * 2));
}

}  // namespace
}  // namespace fmmformer::bench
