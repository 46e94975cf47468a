// SPDX-License-Identifier: Apache-2.0
#include "nn/linear.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include "fmmformer/nn/dropout.h"
#include "helpers.h"
#include "nn/cuda/column_sum_cuda.h"

namespace fmmformer {
namespace {

using torch::Tensor;

double part_lost(const Tensor& value, const Tensor& exact) {
  return testing::largest_difference(value, exact) / (exact.abs().max().item<double>() + 1e-30);
}

double allowed_for(at::ScalarType type) {
  return type == torch::kBFloat16 ? 1e-2 : type == torch::kHalf ? 2e-3 : 2e-5;
}

Tensor random(at::IntArrayRef sizes, at::Device device, at::ScalarType type) {
  return torch::randn(sizes, torch::kDouble).to(device, type);
}

/// x, three weights and three biases.
std::vector<Tensor> leaves_of(at::Device device, at::ScalarType type) {
  torch::manual_seed(5);
  std::vector<Tensor> leaves = {random({3, 67, 40}, device, type)};
  for (const int64_t width : {24, 24, 37}) leaves.push_back(random({width, 40}, device, type));
  for (const int64_t width : {24, 24, 37}) leaves.push_back(random({width}, device, type));
  for (const Tensor& leaf : leaves) leaf.requires_grad_();
  return leaves;
}

/// Outputs and gradients of three maps of one x, the last of which is used in `uses` of three.
std::vector<Tensor> results(const std::vector<Tensor>& leaves, size_t uses, bool one_by_one) {
  const auto map = [&](size_t m) { return LinearMap{leaves[1 + m], leaves[4 + m]}; };
  std::array<Tensor, 3> outs;
  if (one_by_one) {
    for (size_t m = 0; m < 3; ++m) outs[m] = linear(leaves[0], map(m));
  } else {
    outs = linear_thrice(leaves[0], {map(0), map(1), map(2)});
  }
  Tensor loss;
  for (size_t m = 0; m < uses; ++m) {
    const Tensor part = (outs[m] * outs[m].detach().sin()).sum();
    loss = loss.defined() ? loss + part : part;
  }
  loss.backward();
  std::vector<Tensor> all(outs.begin(), outs.end());
  for (size_t m = 0; m < uses; ++m) {
    all.push_back(leaves[1 + m].grad());
    all.push_back(leaves[4 + m].grad());
  }
  all.push_back(leaves[0].grad());
  return all;
}

std::vector<Tensor> doubled(const std::vector<Tensor>& leaves) {
  std::vector<Tensor> result;
  for (const Tensor& leaf : leaves) {
    result.push_back(leaf.detach().to(torch::kDouble).requires_grad_());
  }
  return result;
}

TEST(Linear, MapsWithoutABiasAreTorchs) {
  const auto leaves = leaves_of(torch::kCPU, torch::kDouble);
  const auto outs = linear_thrice(
      leaves[0], {LinearMap{leaves[1], {}}, LinearMap{leaves[2], {}}, LinearMap{leaves[3], {}}});
  for (size_t m = 0; m < 3; ++m) {
    EXPECT_TRUE(torch::equal(outs[m], at::linear(leaves[0], leaves[1 + m])));
  }
}

TEST(Linear, OnAGpuGradientsAreThoseOfDouble) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  for (const auto type : {torch::kFloat, torch::kBFloat16}) {
    for (const bool one_by_one : {false, true}) {
      for (const size_t uses : {size_t{1}, size_t{3}}) {
        const auto leaves = leaves_of(torch::kCUDA, type);
        const auto own = results(leaves, uses, one_by_one);
        const auto exact = results(doubled(leaves), uses, one_by_one);
        for (size_t i = 0; i < own.size(); ++i) {
          EXPECT_EQ(own[i].scalar_type(), type);
          EXPECT_EQ(own[i].sizes(), exact[i].sizes());
          // The sines amplify what the outputs lost.
          EXPECT_LE(part_lost(own[i], exact[i]), type == torch::kFloat ? 1e-4 : 5e-2) << i;
        }
      }
    }
  }
}

TEST(ColumnSum, OnAGpuEveryShapeIsSummedAsInDouble) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  for (const int64_t columns : {1, 3, 8, 12, 17, 70, 128, 255, 256, 257, 264, 1024, 1030, 4096}) {
    for (const int64_t rows : {1, 5, 33, 1000, 8193}) {
      for (const auto type : {torch::kFloat, torch::kBFloat16, torch::kHalf}) {
        // A mean beside the noise: sums that are large enough to compare.
        const Tensor x = (random({rows, columns}, torch::kCUDA, torch::kFloat) + 0.3).to(type);
        const Tensor exact = x.to(torch::kDouble).sum(0);
        for (const auto sum_type : {type, torch::kFloat}) {
          const Tensor sum = cuda::column_sum(x, sum_type);
          EXPECT_EQ(sum.scalar_type(), sum_type);
          EXPECT_LE(part_lost(sum, exact), allowed_for(sum_type))
              << rows << " x " << columns << ", " << type;
        }
        EXPECT_TRUE(torch::equal(cuda::column_sum(x, type), cuda::column_sum(x, type)));
      }
    }
  }
}

TEST(ColumnSum, OnAGpuViewsAndEmptyTensorsAreTaken) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  const Tensor x = random({4, 16, 65}, torch::kCUDA, torch::kFloat);
  const Tensor part = x.flatten().narrow(0, 1, 4096).view({16, 256});  // begins within a group
  EXPECT_LE(part_lost(cuda::column_sum(part, torch::kFloat), part.to(torch::kDouble).sum(0)), 2e-5);
  EXPECT_LE(part_lost(cuda::column_sum(x.transpose(0, 2), torch::kFloat),
                      x.to(torch::kDouble).sum({1, 2})),
            2e-5);
  const Tensor none = cuda::column_sum(torch::empty({0, 24}, x.options()), torch::kFloat);
  EXPECT_TRUE(torch::equal(none, torch::zeros_like(none)));
}

TEST(Linear, ASingleRowWithoutGradientsIsTheSameProduct) {
  at::NoGradGuard no_gradients;
  for (const int64_t in : {1, 3, 15, 16, 17, 64, 100, 2048}) {
    for (const int64_t out : {1, 4, 63, 65, 4099}) {
      const Tensor x = random({1, 1, in}, torch::kCPU, torch::kFloat),
                   weight = random({out, in}, torch::kCPU, torch::kFloat),
                   bias = random({out}, torch::kCPU, torch::kFloat);
      const Tensor exact = torch::matmul(x.to(torch::kDouble), weight.to(torch::kDouble).t());
      const Tensor plain = linear(x, {weight, Tensor()}), with_bias = linear(x, {weight, bias});
      EXPECT_EQ(plain.sizes(), (std::vector<int64_t>{1, 1, out}));
      EXPECT_LE(part_lost(plain, exact), allowed_for(torch::kFloat)) << in << " -> " << out;
      EXPECT_LE(part_lost(with_bias, exact + bias), allowed_for(torch::kFloat))
          << in << " -> " << out;
    }
  }
}

TEST(Linear, ASingleRowOfAnotherLayoutOrTypeIsAProductToo) {
  at::NoGradGuard no_gradients;
  const Tensor x = random({2, 40}, torch::kCPU, torch::kFloat).t().contiguous().t().slice(0, 0, 1),
               weight = random({40, 24}, torch::kCPU, torch::kFloat).t();
  const Tensor exact = torch::matmul(x.to(torch::kDouble), weight.to(torch::kDouble).t());
  EXPECT_LE(part_lost(linear(x, {weight, Tensor()}), exact), allowed_for(torch::kFloat));
  const Tensor in_double = linear(x.to(torch::kDouble), {weight.to(torch::kDouble), Tensor()});
  EXPECT_LE(part_lost(in_double, exact), 1e-14);
}

TEST(ColumnSum, OnAGpuDropoutSumsWhatItsBackwardMakes) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  const Tensor seed = dropout_seed(7, 0, torch::kCUDA);
  const DropoutSite site{.probability = 0.3, .site = 5};
  for (const int64_t columns : {8, 70, 256, 1024, 1032}) {
    for (const int64_t rows : {1, 33, 5001}) {
      for (const auto type : {torch::kFloat, torch::kBFloat16}) {
        const Tensor grad = random({rows, columns}, torch::kCUDA, type);
        const Tensor out = random({rows, columns}, torch::kCUDA, type).relu();
        const Tensor kept = dropout_factors({rows, columns}, site, seed).to(torch::kDouble) * grad;
        const auto [product, sum] = cuda::dropout_multiply_and_sum(grad, site, seed, type);
        EXPECT_TRUE(torch::equal(product.ne(0), kept.ne(0)));
        EXPECT_LE(part_lost(product, kept), allowed_for(type));
        EXPECT_LE(part_lost(sum, kept.sum(0)), allowed_for(type)) << rows << " x " << columns;

        const Tensor passed = grad.to(torch::kDouble) * out.gt(0) / 0.7;
        const auto [through, through_sum] =
            cuda::dropout_relu_gradient_and_sum(out, grad, 0.3, type);
        EXPECT_LE(part_lost(through, passed), allowed_for(type));
        EXPECT_LE(part_lost(through_sum, passed.sum(0)), allowed_for(type))
            << rows << " x " << columns;
      }
    }
  }
}

}  // namespace
}  // namespace fmmformer
