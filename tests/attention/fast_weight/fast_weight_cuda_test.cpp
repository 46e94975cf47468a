// SPDX-License-Identifier: Apache-2.0
// The cases of fast_weight_cases_test.cpp on a GPU, and what a user may rely on there.
#include <ATen/Context.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>

#include "bench/verification.h"

namespace fmmformer::bench {
namespace {

const c10::Device kGpu(c10::kCUDA, 0);

class FastWeightAttentionGpuCase : public testing::TestWithParam<FastWeightCase> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  }
};

TEST_P(FastWeightAttentionGpuCase, AgreesWithTheReferenceInEveryType) {
  for (const c10::ScalarType dtype : GetParam().attention.dtypes) {
    if (dtype == c10::kDouble) continue;  // fp64 runs on the CPU alone
    const CaseReport report = verify_case(GetParam(), dtype, /*seed=*/1, kGpu);
    for (const Check& check : report.checks) {
      EXPECT_TRUE(check.passed()) << dtype_name(dtype) << " " << check.tensor << ", " << check.rule
                                  << ": error " << check.error << ", allowed " << check.allowed;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, FastWeightAttentionGpuCase,
                         testing::ValuesIn(fast_weight_cases_with_tag(CaseTag::kVerify)),
                         [](const auto& info) { return info.param.name(); });

TEST(FastWeightAttention, OnAGpuALongSequenceOfLargeNumbersStaysFiniteInHalfPrecision) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  for (const c10::ScalarType dtype : {c10::kBFloat16, c10::kHalf}) {
    const auto draw = [&] {
      return (10 * torch::randn({1, 65536, 1, 16}, kGpu)).to(dtype).requires_grad_();
    };
    const at::Tensor q = draw(), k = draw(), v = draw();
    const at::Tensor beta = torch::rand({1, 65536, 1}, kGpu).requires_grad_();
    const at::Tensor out = fast_weight_attention({q, k, v, beta}, {});
    out.sum().backward();
    for (const at::Tensor& tensor : {out, q.grad(), k.grad(), v.grad(), beta.grad()})
      EXPECT_TRUE(tensor.isfinite().all().item<bool>());
  }
}

TEST(FastWeightAttention, OnAGpuNanInALiveTokenShowsInAllLaterOutputs) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  for (const int64_t length : {100, 1100}) {
    const FastWeightCase one{{.name = "case",
                              .batch = 1,
                              .length = length,
                              .heads = 2,
                              .head_dim = 16,
                              .bandwidth = 0,
                              .feature_maps = {FeatureMap::kElu},
                              .unit_features = true,
                              .eps = 1e-5,
                              .weights = WeightShape::kNone},
                             FastWeightNormaliser::kOutput};
    const FastWeightTensors tensors = make_inputs(one, c10::kFloat, 1, kGpu);
    const at::NoGradGuard no_gradient;
    tensors.inputs.k.select(1, 48).fill_(std::nan(""));
    const at::Tensor out = fast_weight_attention(tensors.inputs, tensors.options);
    EXPECT_FALSE(out.narrow(1, 0, 48).isnan().any().item<bool>());
    EXPECT_TRUE(out.narrow(1, 48, length - 48).isnan().all().item<bool>());
  }
}

// Up to 512 tokens of narrow heads go backward in one kernel, four chunks of sixteen at a time.
TEST(FastWeightAttention, OnAGpuNarrowHeadsAgreeWithTheReferenceAtEveryBorder) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  for (const int64_t length : {2, 16, 17, 63, 64, 65, 257, 511, 512, 513}) {
    for (const FastWeightNormaliser normaliser :
         {FastWeightNormaliser::kNone, FastWeightNormaliser::kOutput,
          FastWeightNormaliser::kOutputAndKey}) {
      const FastWeightCase one{{.name = "case",
                                .batch = 2,
                                .length = length,
                                .heads = 3,
                                .head_dim = length % 2 == 0 ? 16 : 11,
                                .bandwidth = 0,
                                .feature_maps = {FeatureMap::kElu},
                                .unit_features = true,
                                .eps = 1e-5,
                                .weights = WeightShape::kNone},
                               normaliser};
      for (const c10::ScalarType dtype : {c10::kBFloat16, c10::kFloat}) {
        for (const Check& check : verify_case(one, dtype, /*seed=*/1, kGpu).checks) {
          EXPECT_TRUE(check.passed())
              << length << " tokens, " << dtype_name(dtype) << " " << check.tensor << ", "
              << check.rule << ": error " << check.error << ", allowed " << check.allowed;
        }
      }
    }
  }
}

TEST(FastWeightAttention, OnAGpuNoBatchEntriesGiveAnEmptyResultAndEmptyGradients) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  const at::Tensor q = torch::zeros({0, 5, 2, 8}, kGpu).requires_grad_();
  const at::Tensor out = fast_weight_attention({q, q, q, torch::zeros({0, 5, 2}, kGpu)}, {});
  EXPECT_EQ(out.sizes(), (std::vector<int64_t>{0, 5, 2, 8}));
  out.sum().backward();
  EXPECT_EQ(q.grad().numel(), 0);
}

}  // namespace
}  // namespace fmmformer::bench
