// SPDX-License-Identifier: Apache-2.0
// What users of other libraries had to find out the hard way, each as a behaviour of ours.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <limits>

#include "attention/fmm/fmm_schema.h"
#include "attention/quick_run.h"
#include "bench/case_tensors.h"
#include "fmmformer/attention/fmm_attention.h"
#include "fmmformer/attention/fmm_reference.h"

namespace fmmformer {
namespace {

using bench::AttentionCase, bench::CaseTensors, bench::NamedTensor;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::vector<NamedTensor> run(const AttentionCase& attention_case,
                             c10::ScalarType dtype = c10::kFloat) {
  return bench::evaluate(fmm_attention, bench::make_inputs(attention_case, dtype, 1));
}

void expect_same_bits(const std::vector<NamedTensor>& a, const std::vector<NamedTensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(at::equal(a[i].tensor, b[i].tensor)) << a[i].name;
}

// Many pairs, few pairs (cut into segments), causal and two-sided, uniform and per-channel weights.
std::vector<AttentionCase> varied_cases() {
  return {{.name = "pairs", .batch = 3, .length = 130, .heads = 3, .head_dim = 32},
          {.name = "segments",
           .batch = 1,
           .length = 2100,
           .heads = 1,
           .weights = bench::WeightShape::kPerChannel},
          {.name = "two_sided_segments",
           .batch = 1,
           .length = 2100,
           .heads = 2,
           .causal = false,
           .near_dropout = 0.2}};
}

TEST(FmmAttention, ThirtyRepeatedBackwardRunsGiveTheSameBits) {
  for (const AttentionCase& attention_case : varied_cases()) {
    const auto first = run(attention_case);
    for (int i = 0; i < (quick_run() ? 3 : 30); ++i) expect_same_bits(run(attention_case), first);
  }
}

TEST(FmmAttention, OneAndTwoThreadsGiveTheSameBits) {
  const int before = at::get_num_threads();
  for (const AttentionCase& attention_case : varied_cases()) {
    at::set_num_threads(1);
    const auto one = run(attention_case);
    at::set_num_threads(2);
    expect_same_bits(run(attention_case), one);
    at::set_num_threads(3);
    expect_same_bits(run(attention_case), one);
  }
  at::set_num_threads(before);
}

TEST(FmmAttention, CausalWindowsOfTheSameMeaningGiveTheSameBits) {
  AttentionCase attention_case{.name = "causal", .length = 77, .feature_maps = {}};
  attention_case.window = Window{76, 0};
  const auto expected = run(attention_case);
  for (const Window window : {Window{77, 77}, Window{77, 0}, Window{1000000, 3}}) {
    attention_case.window = window;
    expect_same_bits(run(attention_case), expected);
  }
}

TEST(FmmAttention, KeysOutsideTheBandDoNotMoveTheOutput) {
  CaseTensors tensors =
      bench::make_inputs({.name = "band", .length = 64, .feature_maps = {}}, c10::kFloat, 1);
  const at::NoGradGuard no_gradient;
  const at::Tensor before = fmm_attention(tensors.inputs, tensors.weights, tensors.options);
  tensors.inputs.k.narrow(1, 0, 20).fill_(kNan);
  tensors.inputs.v.narrow(1, 0, 20).fill_(kNan);
  const at::Tensor after = fmm_attention(tensors.inputs, tensors.weights, tensors.options);
  EXPECT_TRUE(at::equal(before.narrow(1, 24, 40), after.narrow(1, 24, 40)));
}

TEST(FmmAttention, NanInALiveTokenShowsInTheOutput) {
  for (const bool near : {false, true}) {
    AttentionCase attention_case{.name = "nan", .length = 40, .bandwidth = near ? 5 : 0};
    if (near) attention_case.feature_maps.clear();
    CaseTensors tensors = bench::make_inputs(attention_case, c10::kFloat, 1);
    const at::NoGradGuard no_gradient;
    tensors.inputs.k.select(1, 7).fill_(kNan);
    const at::Tensor out = fmm_attention(tensors.inputs, tensors.weights, tensors.options);
    EXPECT_FALSE(out.narrow(1, 0, 7).isnan().any().item<bool>());
    EXPECT_TRUE(out.select(1, 7).isnan().all().item<bool>());
  }
}

TEST(FmmAttention, BothLayoutsGiveTheSameBits) {
  AttentionCase attention_case{.name = "layout", .length = 70, .head_dim = 24};
  const auto rows_first = run(attention_case);
  attention_case.layout = bench::Layout::kBhnd;
  expect_same_bits(run(attention_case), rows_first);
}

TEST(FmmAttention, StridesBeyondTwoToThe31AreFollowed) {
  // Two tokens, 2^31 + 2^20 elements apart: the memory between them is never touched, so never
  // really there.
  constexpr int64_t kStride = (int64_t{1} << 31) + (int64_t{1} << 20);
  const at::Tensor memory = at::empty({kStride + 64}, torch::kHalf);
  const at::Tensor far = memory.as_strided({1, 2, 1, 16}, {2 * kStride, kStride, 16, 1});
  const at::Tensor near = torch::randn({1, 2, 1, 16}).to(torch::kHalf);
  far.copy_(near);
  const FmmOptions options{
      .window = Window{4, 0}, .causal = true, .feature_maps = {FeatureMap::kElu}};
  EXPECT_TRUE(at::equal(fmm_attention({far, far, far}, {}, options),
                        fmm_attention({near, near, near}, {}, options)));
}

TEST(FmmAttentionSlow, MoreThan65535PairsOfBatchAndHeadWork) {
  const AttentionCase attention_case{
      .name = "pairs", .batch = 33000, .length = 2, .heads = 2, .head_dim = 3};
  const auto out = run(attention_case);
  const auto last = bench::make_inputs(attention_case, c10::kFloat, 1);
  const auto tail = [](const at::Tensor& x) { return x.detach().narrow(0, 32990, 10); };
  const at::Tensor expected = fmm_attention_reference(
      {tail(last.inputs.q), tail(last.inputs.k), tail(last.inputs.v)}, last.weights, last.options);
  EXPECT_TRUE(at::allclose(tail(out[0].tensor).to(torch::kDouble), expected.detach(), 1e-5, 1e-5));
}

TEST(FmmAttentionSlow, LargeInputsOverALongSequenceStayFiniteInHalfPrecision) {
  for (const c10::ScalarType dtype : {c10::kBFloat16, c10::kHalf}) {
    const auto draw = [&] {
      return (10 * torch::randn({1, 65536, 1, 16})).to(dtype).requires_grad_();
    };
    const at::Tensor q = draw(), k = draw(), v = draw();
    const at::Tensor out =
        fmm_attention({q, k, v}, {},
                      {.window = Window{4, 0},
                       .causal = true,
                       .feature_maps = {FeatureMap::kElu, FeatureMap::kEluFlip}});
    out.sum().backward();
    for (const at::Tensor& tensor : {out, q.grad(), k.grad(), v.grad()}) {
      EXPECT_TRUE(tensor.isfinite().all().item<bool>());
    }
  }
}

TEST(FmmAttention, NoBatchEntriesGiveAnEmptyResultAndEmptyGradients) {
  const at::Tensor q = torch::zeros({0, 5, 2, 8}).requires_grad_();
  const at::Tensor weight = torch::ones({2, 1}).requires_grad_();
  const at::Tensor out =
      fmm_attention({q, q, q}, {.near_weight = weight},
                    {.window = Window{2, 2}, .feature_maps = {FeatureMap::kElu}});
  EXPECT_EQ(out.sizes(), (std::vector<int64_t>{0, 5, 2, 8}));
  out.sum().backward();
  EXPECT_EQ(q.grad().numel(), 0);
  EXPECT_TRUE(at::equal(weight.grad(), torch::zeros({2, 1})));
}

TEST(FmmAttention, ForwardKeepsFourBytesPerRowHeadAndComponentForBackward) {
  for (const bool causal : {true, false}) {
    const AttentionCase attention_case{
        .name = "kept", .batch = 2, .length = 300, .heads = 3, .causal = causal};
    const CaseTensors tensors = bench::make_inputs(attention_case, c10::kBFloat16, 1);
    const ForwardResult result =
        dispatch_forward(tensors.inputs, tensors.weights, tensors.options, Keep::kNothing);
    const int64_t rows = 2 * 300 * 3, maps = 2, states = causal ? 0 : 2 * 3 * maps;
    EXPECT_EQ(result.log_sum_exp.nbytes() + result.normalisers.nbytes(), 4 * (maps + 1) * rows);
    EXPECT_EQ(result.far_sums.numel(), states * 16 * 16);
    EXPECT_EQ(result.far_key_sums.numel(), states * 16);
  }
}

TEST(FmmAttentionSlow, AScalarWeightOfManyHeadsGetsTheSameGradientForEveryThreadCount) {
  const AttentionCase attention_case{.name = "scalar",
                                     .batch = 40000,
                                     .length = 1,
                                     .heads = 1,
                                     .head_dim = 2,
                                     .weights = bench::WeightShape::kScalar};
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const auto one = run(attention_case);
  at::set_num_threads(3);
  expect_same_bits(run(attention_case), one);
  at::set_num_threads(before);
}

TEST(FmmAttention, AnInfiniteUpstreamGradientDoesNotReachTheNextCallThroughDropout) {
  AttentionCase attention_case{.name = "clean", .length = 40, .head_dim = 64, .bandwidth = 6};
  for (const int64_t dim : {64, 100}) {  // leaves infinities in every scratch buffer
    attention_case.head_dim = dim;
    attention_case.near_dropout = 0;
    CaseTensors poisoned = bench::make_inputs(attention_case, c10::kFloat, 1);
    poisoned.upstream.fill_(std::numeric_limits<float>::infinity());
    bench::evaluate(fmm_attention, poisoned);
    attention_case.head_dim = 64;
    attention_case.near_dropout = 0.3;
    for (const NamedTensor& result : run(attention_case)) {
      EXPECT_TRUE(result.tensor.isfinite().all().item<bool>()) << result.name;
    }
  }
}

TEST(FmmAttention, NanQueriesDoNotReachTheNextCallsWeightsPerChannel) {
  // The last chunk begins inside the first band: its overhanging keys are columns that nobody
  // wrote.
  const int threads = at::get_num_threads();
  at::set_num_threads(1);  // one scratch memory for all calls
  for (const auto& [length, left] : {std::pair{1, 3}, {9, 4}, {17, 9}, {23, 9}, {25, 19}}) {
    CaseTensors poisoned = bench::make_inputs(
        {.name = "poison", .length = 40, .head_dim = 64, .bandwidth = 30}, c10::kFloat, 1);
    poisoned.inputs.q.detach().fill_(std::nan(""));
    bench::evaluate(fmm_attention, poisoned);
    const AttentionCase next{.name = "next",
                             .length = length,
                             .head_dim = 64,
                             .window = Window{left, 0},
                             .weights = bench::WeightShape::kPerChannel};
    for (const NamedTensor& result : run(next)) {
      EXPECT_TRUE(result.tensor.isfinite().all().item<bool>()) << result.name << " of " << length;
    }
  }
  at::set_num_threads(threads);
}

TEST(FmmAttention, OverlappingRowsGetTheGradientsOfSeparateOnes) {
  const auto gradient = [](bool overlapping) {
    at::manual_seed(1);
    const at::Tensor memory = torch::randn({12}, torch::kDouble);
    const at::Tensor rows = memory.as_strided({1, 4, 1, 9}, {0, 1, 0, 1});
    const at::Tensor q = (overlapping ? rows : rows.contiguous()).detach().requires_grad_();
    fmm_attention({q, q, q}, {}, {.window = Window{2, 2}}).square().sum().backward();
    return q.grad().contiguous();
  };
  EXPECT_TRUE(at::allclose(gradient(true), gradient(false)));
}

TEST(FmmAttention, NeitherFieldGivesZeros) {
  const at::Tensor q = torch::randn({1, 5, 2, 8});
  EXPECT_TRUE(at::equal(fmm_attention({q, q, q}, {}, {}), torch::zeros({1, 5, 2, 8})));
}

TEST(FmmAttention, ASecondDerivativeIsAClearError) {
  const at::Tensor q = torch::randn({1, 5, 2, 8}).requires_grad_();
  const at::Tensor out = fmm_attention({q, q, q}, {}, {.window = Window{2, 2}});
  const at::Tensor grad =
      torch::autograd::grad({out.sum()}, {q}, {}, true, /*create_graph=*/true)[0];
  EXPECT_THROW(grad.sum().backward(), c10::Error);
}

}  // namespace
}  // namespace fmmformer
