// SPDX-License-Identifier: Apache-2.0
// What a user may rely on beyond the formula, each as a behaviour; and what is said of a mistake.
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <limits>

#include "attention/fast_weight/fast_weight_schema.h"
#include "attention/quick_run.h"
#include "bench/fast_weight_cases.h"
#include "fmmformer/attention/fast_weight_attention.h"
#include "fmmformer/attention/fast_weight_reference.h"

namespace fmmformer {
namespace {

using bench::AttentionCase, bench::FastWeightCase, bench::FastWeightTensors, bench::NamedTensor;
using testing::AllOf, testing::HasSubstr;

constexpr auto kOutputAndKey = FastWeightNormaliser::kOutputAndKey;

FastWeightCase a_case(int64_t batch, int64_t length, int64_t heads, int64_t head_dim) {
  AttentionCase attention{.name = "case",
                          .batch = batch,
                          .length = length,
                          .heads = heads,
                          .head_dim = head_dim,
                          .bandwidth = 0,
                          .feature_maps = {FeatureMap::kElu},
                          .unit_features = true,
                          .eps = 1e-5,
                          .weights = bench::WeightShape::kNone};
  return {attention, kOutputAndKey};
}

std::vector<NamedTensor> run(const FastWeightCase& one, c10::ScalarType dtype = c10::kFloat) {
  return bench::evaluate(fast_weight_attention, bench::make_inputs(one, dtype, 1));
}

void expect_same_bits(const std::vector<NamedTensor>& a, const std::vector<NamedTensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(at::equal(a[i].tensor, b[i].tensor)) << a[i].name;
}

std::vector<FastWeightCase> varied_cases() {
  return {a_case(3, 130, 3, 32), a_case(1, 1100, 1, 16), a_case(1, 600, 2, 20)};
}

TEST(FastWeightAttention, ThirtyRepeatedBackwardRunsGiveTheSameBits) {
  for (const FastWeightCase& one : varied_cases()) {
    const auto first = run(one);
    for (int i = 0; i < (quick_run() ? 3 : 30); ++i) expect_same_bits(run(one), first);
  }
}

TEST(FastWeightAttention, OneAndTwoThreadsGiveTheSameBits) {
  const int before = at::get_num_threads();
  for (const FastWeightCase& one : varied_cases()) {
    at::set_num_threads(1);
    const auto alone = run(one);
    for (const int threads : {2, 3}) {
      at::set_num_threads(threads);
      expect_same_bits(run(one), alone);
    }
  }
  at::set_num_threads(before);
}

TEST(FastWeightAttention, BothLayoutsGiveTheSameBits) {
  FastWeightCase one = a_case(2, 70, 3, 24);
  const auto rows_first = run(one);
  one.attention.layout = bench::Layout::kBhnd;
  expect_same_bits(run(one), rows_first);
}

TEST(FastWeightAttention, LaterTokensDoNotMoveEarlierOutputs) {
  FastWeightTensors tensors = bench::make_inputs(a_case(1, 100, 2, 16), c10::kFloat, 1);
  const at::NoGradGuard no_gradient;
  const at::Tensor before = fast_weight_attention(tensors.inputs, tensors.options);
  for (const at::Tensor& x : {tensors.inputs.q, tensors.inputs.k, tensors.inputs.v})
    x.narrow(1, 50, 50).mul_(-3);
  const at::Tensor after = fast_weight_attention(tensors.inputs, tensors.options);
  EXPECT_TRUE(at::equal(before.narrow(1, 0, 50), after.narrow(1, 0, 50)));
  EXPECT_FALSE(at::equal(before.narrow(1, 50, 1), after.narrow(1, 50, 1)));
}

TEST(FastWeightAttention, NanInALiveTokenShowsInAllLaterOutputs) {
  FastWeightTensors tensors = bench::make_inputs(a_case(1, 100, 2, 16), c10::kFloat, 1);
  const at::NoGradGuard no_gradient;
  tensors.inputs.k.select(1, 48).fill_(std::nan(""));
  const at::Tensor out = fast_weight_attention(tensors.inputs, tensors.options);
  EXPECT_FALSE(out.narrow(1, 0, 48).isnan().any().item<bool>());
  EXPECT_TRUE(out.narrow(1, 48, 52).isnan().all().item<bool>());
}

TEST(FastWeightAttention, ATokenWithAClosedGateWritesNothing) {
  FastWeightTensors tensors = bench::make_inputs(a_case(1, 100, 2, 16), c10::kFloat, 1);
  tensors.options.normaliser = FastWeightNormaliser::kNone;
  const at::NoGradGuard no_gradient;
  tensors.inputs.beta.select(1, 40).zero_();
  const at::Tensor before = fast_weight_attention(tensors.inputs, tensors.options);
  tensors.inputs.v.select(1, 40).mul_(-7);
  tensors.inputs.k.select(1, 40).mul_(-7);
  EXPECT_TRUE(at::equal(fast_weight_attention(tensors.inputs, tensors.options), before));
}

TEST(FastWeightAttention, MaskedTokensAreAsIfTheyWereNotThere) {
  FastWeightTensors tensors = bench::make_inputs(a_case(1, 90, 2, 16), c10::kDouble, 1);
  const at::NoGradGuard no_gradient;
  const at::Tensor mask = torch::rand({1, 90}) < 0.6;
  const at::Tensor kept = mask[0].nonzero().squeeze(-1);
  const auto only = [&](const at::Tensor& x) { return x.index_select(1, kept); };
  const FastWeightInputs all = tensors.inputs;
  const at::Tensor expected = fast_weight_attention(
      {only(all.q), only(all.k), only(all.v), only(all.beta)}, tensors.options);
  tensors.inputs.token_mask = mask;
  const at::Tensor out = fast_weight_attention(tensors.inputs, tensors.options);
  EXPECT_TRUE(at::allclose(only(out), expected, 1e-12, 1e-14));
  EXPECT_EQ(out.masked_select(~mask.unsqueeze(-1).unsqueeze(-1)).abs().sum().item<double>(), 0);
}

TEST(FastWeightAttention, BetaMayBeOfAnotherTypeAndStrided) {
  const FastWeightTensors tensors = bench::make_inputs(a_case(2, 40, 3, 16), c10::kBFloat16, 1);
  const FastWeightInputs& in = tensors.inputs;
  const at::Tensor wide = in.beta.detach().to(torch::kFloat);
  const at::Tensor strided = wide.transpose(0, 2).contiguous().transpose(0, 2).requires_grad_();
  const at::Tensor out = fast_weight_attention({in.q, in.k, in.v, strided}, tensors.options);
  EXPECT_EQ(out.scalar_type(), torch::kBFloat16);
  EXPECT_TRUE(at::equal(out, fast_weight_attention({in.q, in.k, in.v, wide}, tensors.options)));
  out.sum().backward();
  EXPECT_EQ(strided.grad().scalar_type(), torch::kFloat);
}

TEST(FastWeightAttentionSlow, ALongSequenceOfLargeNumbersStaysFiniteInHalfPrecision) {
  for (const c10::ScalarType dtype : {c10::kBFloat16, c10::kHalf}) {
    const auto draw = [&] {
      return (10 * torch::randn({1, 65536, 1, 16})).to(dtype).requires_grad_();
    };
    const at::Tensor q = draw(), k = draw(), v = draw();
    const at::Tensor beta = torch::rand({1, 65536, 1}).requires_grad_();
    const at::Tensor out = fast_weight_attention({q, k, v, beta}, {});
    out.sum().backward();
    for (const at::Tensor& tensor : {out, q.grad(), k.grad(), v.grad(), beta.grad()})
      EXPECT_TRUE(tensor.isfinite().all().item<bool>());
  }
}

TEST(FastWeightAttention, NoBatchEntriesGiveAnEmptyResultAndEmptyGradients) {
  const at::Tensor q = torch::zeros({0, 5, 2, 8}).requires_grad_();
  const at::Tensor out = fast_weight_attention({q, q, q, torch::zeros({0, 5, 2})}, {});
  EXPECT_EQ(out.sizes(), (std::vector<int64_t>{0, 5, 2, 8}));
  out.sum().backward();
  EXPECT_EQ(q.grad().numel(), 0);
}

TEST(FastWeightAttention, ForwardKeepsAStateEvery512TokensForBackward) {
  const FastWeightTensors tensors = bench::make_inputs(a_case(2, 1100, 3, 16), c10::kBFloat16, 1);
  const FastWeightForward result = dispatch_forward(tensors.inputs, tensors.options, Kept::kStates);
  EXPECT_EQ(result.memories.sizes(), (std::vector<int64_t>{2 * 3 * 3, 16, 16}));
  EXPECT_EQ(result.key_sums.sizes(), (std::vector<int64_t>{2 * 3 * 3, 16}));
  EXPECT_EQ(result.memories.scalar_type(), torch::kFloat);
}

TEST(FastWeightAttention, ASecondDerivativeIsAClearError) {
  const at::Tensor q = torch::randn({1, 5, 2, 8}).requires_grad_();
  const at::Tensor out = fast_weight_attention({q, q, q, torch::rand({1, 5, 2})}, {});
  const at::Tensor grad =
      torch::autograd::grad({out.sum()}, {q}, {}, true, /*create_graph=*/true)[0];
  EXPECT_THROW(grad.sum().backward(), c10::Error);
}

std::string error_of(const FastWeightInputs& inputs, const FastWeightOptions& options = {}) {
  try {
    fast_weight_attention(inputs, options);
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST(FastWeightAttentionErrors, NameABetaThatDoesNotFit) {
  const at::Tensor x = torch::randn({2, 5, 3, 8});
  EXPECT_THAT(error_of({x, x, x, torch::rand({2, 5})}),
              AllOf(HasSubstr("fast_weight_attention: beta has 2 dimensions"),
                    HasSubstr("[batch, length, heads]")));
  EXPECT_THAT(error_of({x, x, x, torch::rand({2, 5, 4})}), HasSubstr("beta has shape [2, 5, 4]"));
  EXPECT_THAT(error_of({x, x, x, torch::ones({2, 5, 3}, torch::kLong)}),
              HasSubstr("allowed are floating types"));
}

TEST(FastWeightAttentionErrors, AreThoseOfFmmAttentionForWhatBothHave) {
  const at::Tensor x = torch::randn({2, 5, 3, 8}), beta = torch::rand({2, 5, 3});
  EXPECT_THAT(error_of({x, torch::randn({2, 6, 3, 8}), x, beta}),
              HasSubstr("fast_weight_attention: k has shape [2, 6, 3, 8]"));
  EXPECT_THAT(error_of({x, x, x, beta, torch::ones({2, 5})}),
              HasSubstr("token_mask is of type Float"));
  EXPECT_THAT(error_of({x, x, x, beta}, {.eps = -1}), HasSubstr("eps is -1"));
}

}  // namespace
}  // namespace fmmformer
