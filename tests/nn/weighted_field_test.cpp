// SPDX-License-Identifier: Apache-2.0
#include "nn/weighted_field.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace fmmformer {
namespace {

using torch::Tensor;

/// The sum and, of its gradient, those of rest, field and weight.
std::vector<Tensor> results(const Tensor& rest, const Tensor& field, const Tensor& weight,
                            const Tensor& grad) {
  const std::vector<Tensor> leaves = {rest.detach().requires_grad_(),
                                      field.detach().requires_grad_(),
                                      weight.detach().requires_grad_()};
  const Tensor out = with_field(leaves[0], leaves[1], leaves[2]);
  auto gradients = torch::autograd::grad({out}, leaves, {grad});
  gradients.insert(gradients.begin(), out.detach());
  return gradients;
}

double relative_error(const Tensor& own, const Tensor& exact) {
  return ((own.to(exact.options()) - exact).norm() / exact.norm()).item<double>();
}

TEST(WeightedField, WithoutWeightOrRestIsWhatThereIs) {
  const Tensor rest = torch::rand({2, 3, 2, 4}), field = torch::rand({2, 3, 2, 4});
  const Tensor weight = torch::rand({2, 4});
  EXPECT_TRUE(torch::equal(with_field({}, field, {}), field));
  EXPECT_TRUE(torch::equal(with_field(rest, field, {}), rest + field));
  EXPECT_TRUE(torch::equal(with_field({}, field, weight), field * weight));
  EXPECT_TRUE(torch::allclose(with_field(rest, field, weight), rest + field * weight));
}

TEST(WeightedField, OnAGpuSumAndGradientsAreThoseOfDouble) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  struct Shape {
    int64_t batch, length, heads, channels;
  };
  // The third has no group of eight columns, the last but one many rows for a column.
  for (const auto [batch, length, heads, channels] :
       {Shape{1, 1, 1, 8}, Shape{2, 33, 8, 16}, Shape{2, 7, 3, 5}, Shape{96, 256, 8, 16},
        Shape{3, 130, 5, 40}}) {
    for (const auto type : {torch::kFloat, torch::kBFloat16, torch::kHalf}) {
      const auto on = torch::TensorOptions().device(torch::kCUDA);
      const auto draw = [&] { return torch::randn({batch, length, heads, channels}, on).to(type); };
      const Tensor rest = draw(), field = draw(), grad = draw();
      const Tensor weight = torch::randn({heads, channels}, on);
      const auto own = results(rest, field, weight, grad);
      const auto exact = results(rest.to(torch::kDouble), field.to(torch::kDouble),
                                 weight.to(torch::kDouble), grad.to(torch::kDouble));
      const double allowed = type == torch::kFloat ? 1e-5 : type == torch::kHalf ? 2e-3 : 6e-3;
      for (size_t i = 0; i < own.size(); ++i) {
        EXPECT_EQ(own[i].sizes(), exact[i].sizes());
        EXPECT_LE(relative_error(own[i], exact[i]), allowed) << i << ", " << field.sizes();
      }
      EXPECT_EQ(own[0].scalar_type(), type);
      const auto again = results(rest, field, weight, grad);
      for (size_t i = 0; i < own.size(); ++i) EXPECT_TRUE(torch::equal(own[i], again[i]));
    }
  }
}

}  // namespace
}  // namespace fmmformer
