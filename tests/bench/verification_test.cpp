// SPDX-License-Identifier: Apache-2.0
#include "bench/verification.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "bench/plain_torch.h"
#include "fmmformer/attention/fmm_reference.h"

namespace fmmformer::bench {
namespace {

at::Tensor rounded_reference(const AttentionInputs& inputs, const BlendWeights& weights,
                             const FmmOptions& options) {
  return fmm_attention_reference(inputs, weights, options).to(inputs.q.scalar_type());
}

TEST(Verification, TheRoundedReferencePasses) {
  for (const auto* name :
       {"plain_causal", "mask_random_two_sided", "length_1_causal", "diagonal_only"}) {
    for (const c10::ScalarType dtype : {c10::kDouble, c10::kFloat, c10::kBFloat16, c10::kHalf}) {
      const CaseReport report = verify_case(case_named(name), dtype, 1, rounded_reference);
      EXPECT_TRUE(report.passed())
          << name << " " << report.worst().tensor << " " << report.worst().error;
    }
  }
}

TEST(Verification, AnErrorOfOnePercentFails) {
  const auto wrong = [](const AttentionInputs& inputs, const BlendWeights& weights,
                        const FmmOptions& options) {
    return rounded_reference(inputs, weights, options) * 1.01;
  };
  for (const c10::ScalarType dtype : {c10::kDouble, c10::kFloat, c10::kBFloat16, c10::kHalf}) {
    EXPECT_FALSE(verify_case(case_named("plain_causal"), dtype, 1, wrong).passed())
        << dtype_name(dtype);
  }
}

TEST(Verification, AWrongGradientAloneFails) {
  const auto wrong = [](const AttentionInputs& inputs, const BlendWeights& weights,
                        const FmmOptions& options) {
    AttentionInputs detached = inputs;
    detached.k = inputs.k.detach();
    return rounded_reference(detached, weights, options);
  };
  const CaseReport report = verify_case(case_named("plain_causal"), c10::kFloat, 1, wrong);
  EXPECT_FALSE(report.passed());
  EXPECT_EQ(report.worst().tensor, "d_k");
}

TEST(Verification, AWeightsGradientThatLacksOneTokenFails) {
  const auto wrong = [](const AttentionInputs& inputs, const BlendWeights& weights,
                        const FmmOptions& options) {
    BlendWeights detached = weights;
    detached.near_weight = weights.near_weight->detach();
    const at::Tensor right = rounded_reference(inputs, weights, options);
    const at::Tensor lacking = rounded_reference(inputs, detached, options);
    const int64_t last = right.size(1) - 1;
    return at::cat({right.slice(1, 0, last), lacking.slice(1, last)}, 1);
  };
  const CaseReport report = verify_case(case_named("plain_causal"), c10::kFloat, 1, wrong);
  EXPECT_FALSE(report.passed());
  EXPECT_EQ(report.worst().tensor, "d_near_weight");
}

TEST(Verification, AWeightsGradientWhoseTermsCancelIsHeldAgainstTheSizeOfTheTerms) {
  const AttentionCase one{.name = "one_weight",
                          .batch = 1,
                          .length = 32,
                          .heads = 1,
                          .head_dim = 8,
                          .weights = WeightShape::kScalar};
  constexpr uint64_t kSeeds = 20;
  std::vector<double> exact;  // sums of as many terms of random signs: their size is that of a sum
  double squares = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    for (const NamedTensor& found :
         evaluate(fmm_attention_reference, make_inputs(one, c10::kDouble, seed))) {
      if (found.name == "d_near_weight") exact.push_back(found.tensor.item<double>());
    }
    squares += exact.back() * exact.back();
  }
  const double size = std::sqrt(squares / kSeeds);
  ASSERT_LT(std::ranges::min(exact, {}, [](double x) { return std::abs(x); }), 0.2 * size);
  const auto passes = [&](double error, uint64_t seed) {
    const auto off = [&](const AttentionInputs& inputs, const BlendWeights& weights,
                         const FmmOptions& options) {
      BlendWeights copy = weights;
      copy.near_weight = *weights.near_weight * 1;
      copy.near_weight->register_hook([=](const at::Tensor& g) { return g + error; });
      return fmm_attention_reference(inputs, copy, options);
    };
    return verify_case(one, c10::kDouble, seed, off).passed();
  };
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    EXPECT_TRUE(passes(0.25e-12 * size, seed)) << seed;
    EXPECT_FALSE(passes(100e-12 * size, seed)) << seed;
  }
}

TEST(Verification, AnOutputAtADeadTokenFailsHoweverSmall) {
  const auto leaky = [](const AttentionInputs& inputs, const BlendWeights& weights,
                        const FmmOptions& options) {
    return rounded_reference(inputs, weights, options) + 1e-30;
  };
  const CaseReport report = verify_case(case_named("mask_left_causal"), c10::kFloat, 1, leaky);
  EXPECT_FALSE(report.passed());
  EXPECT_EQ(report.worst().rule, kDeadTokens);
}

TEST(Verification, NanFails) {
  const auto broken = [](const AttentionInputs& inputs, const BlendWeights& weights,
                         const FmmOptions& options) {
    return rounded_reference(inputs, weights, options) * std::nan("");
  };
  EXPECT_FALSE(verify_case(case_named("plain_causal"), c10::kFloat, 1, broken).passed());
  EXPECT_FALSE(verify_case(case_named("length_1_causal"), c10::kFloat, 1, broken).passed());
}

}  // namespace
}  // namespace fmmformer::bench
