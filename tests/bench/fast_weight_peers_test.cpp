// SPDX-License-Identifier: Apache-2.0
#include "bench/fast_weight_peers.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "bench/fast_weight_benchmark.h"
#include "bench/verification.h"
#include "fmmformer/attention/fast_weight_reference.h"

namespace fmmformer::bench {
namespace {

void expect_close(const std::vector<NamedTensor>& a, const std::vector<NamedTensor>& b,
                  const std::string& where) {
  for (size_t i = 0; i < a.size(); ++i) {
    const double scale = std::max(1.0, b[i].tensor.abs().max().item<double>());
    EXPECT_LE((a[i].tensor - b[i].tensor).abs().max().item<double>(), 1e-10 * scale)
        << where << " " << a[i].name;
  }
}

TEST(FastWeightPeers, InDoubleEqualTheReference) {
  for (const FastWeightCase& one : fast_weight_cases_with_tag(CaseTag::kQuick)) {
    if (one.attention.length > 300) continue;
    const FastWeightTensors tensors = make_inputs(one, c10::kDouble, 4);
    const auto exact = evaluate(fast_weight_attention_reference, tensors);
    expect_close(evaluate(plain_torch_fast_weight, tensors), exact, one.name());
    if (tensors.inputs.token_mask) continue;
    const auto loop = [](const FastWeightInputs& inputs, const FastWeightOptions& options) {
      return chunk_loop(inputs, options, 32);
    };
    expect_close(evaluate(loop, tensors), exact, one.name() + " in chunks");
  }
}

TEST(FastWeightCases, NamesAreUniqueAndEveryOptionIsVerified) {
  std::set<std::string> names;
  for (const FastWeightCase& one : fast_weight_cases()) {
    EXPECT_TRUE(names.insert(one.name()).second) << one.name();
    EXPECT_TRUE(one.name().starts_with("fast_weight_")) << one.name();
    EXPECT_EQ(one.attention.feature_maps.size(), 1u) << one.name();
  }
  const auto cases = fast_weight_cases_with_tag(CaseTag::kVerify);
  for (const auto& entry : EnumTable<FeatureMap>::entries()) {
    EXPECT_TRUE(std::ranges::any_of(cases, [&](const FastWeightCase& one) {
      return one.attention.feature_maps.front() == entry.value;
    })) << entry.name;
  }
}

TEST(FastWeightVerification, AWrongGradientOfBetaAloneFails) {
  const auto wrong = [](const FastWeightInputs& inputs, const FastWeightOptions& options) {
    FastWeightInputs detached = inputs;
    detached.beta = inputs.beta.detach();
    return fast_weight_attention_reference(detached, options).to(inputs.q.scalar_type());
  };
  const CaseReport report =
      verify_case(fast_weight_cases().front(), c10::kFloat, /*seed=*/1, wrong);
  EXPECT_FALSE(report.passed());
  EXPECT_EQ(report.worst().tensor, "d_beta");
}

TEST(FastWeightFloor, CountsThreeProductsForwardAndSixMoreBackward) {
  const FastWeightCase one{{.name = "a", .batch = 1, .length = 10, .heads = 1, .head_dim = 4}};
  EXPECT_EQ(floor_operations(one, Pass::kForward), 10 * 6 * 16);
  EXPECT_EQ(floor_operations(one, Pass::kForwardBackward), 10 * 18 * 16);
}

}  // namespace
}  // namespace fmmformer::bench
