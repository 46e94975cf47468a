// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/nn/adaptive_softmax.h"

#include <gtest/gtest.h>

#include "fmmformer/nn/linear_cross_entropy.h"
#include "nn/helpers.h"

namespace fmmformer {
namespace {

using namespace fmmformer::testing;
using torch::Tensor;

TEST(LinearCrossEntropy, EqualsItsFormulaAndGradient) {
  const auto options = torch::dtype(torch::kDouble).requires_grad(true);
  // So many classes that the tokens go through in several chunks.
  const Tensor hidden = torch::randn({3, 2}, options),
               weight = torch::randn({6'000'000, 2}, options),
               bias = torch::randn({6'000'000}, options);
  const Tensor targets = torch::tensor({0, 5'999'999, 17}),
               grad = torch::randn({3}, torch::kDouble);
  const auto run = [&](bool ours) {
    for (const Tensor& t : {hidden, weight, bias}) t.mutable_grad().reset();
    const Tensor loss = ours ? linear_cross_entropy(hidden, weight, bias, targets)
                             : -torch::log_softmax(torch::matmul(hidden, weight.t()) + bias, 1)
                                    .gather(1, targets.unsqueeze(1))
                                    .squeeze(1);
    loss.backward(grad);
    return std::vector<Tensor>{loss.detach(), hidden.grad().clone(), weight.grad().clone(),
                               bias.grad().clone()};
  };
  const auto ours = run(true), plain = run(false);
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_LT(largest_difference(ours[i], plain[i]), 1e-10) << i;
  }
}

// In half precision on a GPU, whose kernels are others than the CPU's: against the formula in
// double over the same rounded numbers.
TEST(LinearCrossEntropy, IsAsExactAsItsTypeOnAGpu) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  struct Shape {
    int64_t tokens, classes, dim;
  };
  // Odd numbers of classes, several chunks, fewer rows than a thread block has.
  for (const auto [tokens, classes, dim] :
       {Shape{4000, 20'003, 128}, {300, 67'735, 128}, {700, 160'000, 64}, {1, 1, 8}, {65, 9, 16}}) {
    const auto made = [&](at::IntArrayRef sizes, double scale) {
      return (torch::randn(sizes) * scale).to(torch::kCUDA, torch::kBFloat16).requires_grad_();
    };
    const Tensor hidden = made({tokens, dim}, 1), weight = made({classes, dim}, 0.2),
                 bias = made({classes}, 1), grad = torch::randn({tokens}, torch::kCUDA),
                 targets =
                     torch::randint(classes, {tokens}, torch::dtype(torch::kLong)).to(torch::kCUDA);
    const Tensor loss = linear_cross_entropy(hidden, weight, bias, targets);
    const auto gradients = torch::autograd::grad({loss}, {hidden, weight, bias}, {grad});
    const auto exact_of = [](const Tensor& x) {
      return x.detach().to(torch::kDouble).requires_grad_();
    };
    const Tensor h = exact_of(hidden), w = exact_of(weight), b = exact_of(bias);
    const Tensor plain = -torch::log_softmax(torch::matmul(h, w.t()) + b, 1)
                              .gather(1, targets.unsqueeze(1))
                              .squeeze(1);
    const auto exact = torch::autograd::grad({plain}, {h, w, b}, {grad.to(torch::kDouble)});
    const auto error = [](const Tensor& ours, const Tensor& truth) {
      return ((ours.to(torch::kDouble) - truth).norm() / truth.norm().clamp_min(1e-9))
          .item<double>();
    };
    EXPECT_LT(error(loss, plain), 4e-3) << classes;
    // A single class has no gradient but rounding.
    for (size_t i = 0; i < exact.size() && classes > 1; ++i) {
      EXPECT_LT(error(gradients[i], exact[i]), 1e-2) << classes << " " << i;
    }
    EXPECT_TRUE(torch::equal(linear_cross_entropy(hidden, weight, bias, targets), loss));
    const auto again = torch::autograd::grad({linear_cross_entropy(hidden, weight, bias, targets)},
                                             {hidden, weight, bias}, {grad});
    for (size_t i = 0; i < again.size(); ++i) EXPECT_TRUE(torch::equal(again[i], gradients[i]));
  }
}

struct Adaptive : ::testing::Test {
  Adaptive() {
    fill(softmax);
    at::NoGradGuard no_gradients;
    softmax.bias.normal_();
  }
  AdaptiveSoftmax softmax{50, 8, {10, 20, 35}};
  Tensor table = torch::randn({50, 8}, torch::requires_grad());
  Tensor hidden = torch::randn({200, 8}, torch::requires_grad());
};

TEST_F(Adaptive, ProbabilitiesSumToOne) {
  const Tensor p = softmax.log_probabilities(hidden, table).exp();
  EXPECT_LT(largest_difference(p.sum(1), torch::ones({200})), 1e-5);
}

TEST_F(Adaptive, LossesAreThoseOfTheFullDistribution) {
  const Tensor targets = torch::randint(50, {200});
  const Tensor plain =
      -softmax.log_probabilities(hidden, table).gather(1, targets.unsqueeze(1)).squeeze(1);
  const Tensor ours = softmax.losses(hidden, targets, table);
  EXPECT_LT(largest_difference(ours, plain), 1e-5);

  const auto gradients = [&](const Tensor& loss) {
    softmax.zero_grad();
    table.mutable_grad().reset(), hidden.mutable_grad().reset();
    loss.mean().backward();
    std::vector<Tensor> all = {table.grad().clone(), hidden.grad().clone()};
    for (const Tensor& parameter : softmax.parameters()) all.push_back(parameter.grad().clone());
    return all;
  };
  const auto a = gradients(ours), b = gradients(plain);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_LT(largest_difference(a[i], b[i]), 1e-5) << i;
}

TEST_F(Adaptive, TheLastEntryOfTheHeadIsTheFirstCluster) {
  const Parameters p{softmax};
  const Tensor first = torch::log_softmax(
      torch::cat({torch::matmul(hidden, table.slice(0, 0, 10).t()) + softmax.bias.slice(0, 0, 10),
                  plain_linear(p, "cluster", hidden)},
                 1),
      1);
  const Tensor tail = torch::log_softmax(
      torch::matmul(hidden, table.slice(0, 10, 20).t()) + softmax.bias.slice(0, 10, 20), 1);
  EXPECT_LT(largest_difference(softmax.log_probabilities(hidden, table).select(1, 13),
                               first.select(1, 12) + tail.select(1, 3)),
            1e-5);
}

TEST_F(Adaptive, ItsTwoStepsAddUpToEveryWord) {
  at::NoGradGuard no_gradients;
  const Tensor all = softmax.log_probabilities(hidden, table);
  const auto head = softmax.head_log_probabilities(hidden, table);
  EXPECT_LT(largest_difference(head.words, all.slice(1, 0, 10)), 1e-6);
  for (int64_t i = 0; i < softmax.clusters(); ++i) {
    const Tensor words = all.narrow(1, softmax.cluster_begin(i), softmax.cluster_size(i));
    // A cluster's own entry is the probability of all its words together.
    EXPECT_LT(largest_difference(head.clusters.select(1, i), words.logsumexp(1)), 1e-5);
    EXPECT_LT(largest_difference(softmax.cluster_log_probabilities(i, hidden, table),
                                 words - words.logsumexp(1, true)),
              1e-5);
  }
}

TEST_F(Adaptive, ClustersWithoutATargetAreFine) {
  const Tensor targets = torch::randint(10, {200});
  softmax.losses(hidden, targets, table).sum().backward();
  EXPECT_TRUE(table.grad().slice(0, 10).eq(0).all().item<bool>());
}

TEST(AdaptiveSoftmax, BadCutoffsAreErrors) {
  EXPECT_THROW(AdaptiveSoftmax(50, 8, {}), c10::ValueError);
  EXPECT_THROW(AdaptiveSoftmax(50, 8, {20, 10}), c10::ValueError);
  EXPECT_THROW(AdaptiveSoftmax(50, 8, {50}), c10::ValueError);
}

}  // namespace
}  // namespace fmmformer
