// SPDX-License-Identifier: Apache-2.0
#include "nn/layer_norm.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <algorithm>

#include "fmmformer/nn/layers.h"
#include "helpers.h"

namespace fmmformer {
namespace {

using torch::Tensor;

constexpr double kEps = 1e-5;

/// The output and the gradients of x, weight and bias.
std::vector<Tensor> results(const auto& norm, const std::vector<Tensor>& inputs,
                            const Tensor& grad) {
  std::vector<Tensor> leaves;
  for (const Tensor& input : inputs) leaves.push_back(input.detach().clone().requires_grad_());
  const Tensor out = norm(leaves[0], leaves[1], leaves[2]);
  out.backward(grad.to(out.scalar_type()));
  std::vector<Tensor> all = {out.detach()};
  for (const Tensor& leaf : leaves) all.push_back(leaf.grad());
  return all;
}

Tensor torchs_norm(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return at::layer_norm(x, weight.sizes(), weight, bias, kEps);
}

Tensor own_norm(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return layer_norm(x, weight, bias, kEps);
}

/// Two uses, one of them three times as strong: gradients of both reach the kernel.
Tensor own_norm_twice(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const TwoUses uses = layer_norm_twice(x, weight, bias, kEps);
  return 0.25 * uses.first + 0.75 * uses.second;
}

/// A norm and its input in one sum, as in a block that normalises first.
Tensor norm_beside(const NormAndInput& both) { return 0.5 * both.norm + 2 * both.input; }
Tensor own_norm_beside(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return norm_beside(layer_norm_beside(x, weight, bias, kEps));
}
Tensor torchs_norm_beside(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return norm_beside({torchs_norm(x, weight, bias), x});
}

/// What is lost of `exact`, as a part of its largest value; of one that vanishes, such as the
/// gradient of a single column, as a part of 0.01.
double loss_of(const Tensor& value, const Tensor& exact) {
  return testing::largest_difference(value, exact) /
         std::max(exact.abs().max().item<double>(), 0.01);
}

struct NormCase {
  int64_t rows, width;
  at::ScalarType type, parameter_type;
};

std::vector<Tensor> inputs_of(const NormCase& c, at::Device device) {
  torch::manual_seed(3);
  const auto options = torch::dtype(torch::kDouble);
  return {(torch::randn({c.rows, c.width}, options) * 2 + 0.7).to(device, c.type),
          (torch::randn({c.width}, options) * 0.5 + 1).to(device, c.parameter_type),
          torch::randn({c.width}, options).to(device, c.parameter_type),
          torch::randn({c.rows, c.width}, options).to(device, c.type)};
}

void expect_the_exact_values(const auto& norm, const NormCase& c, double allowed,
                             Tensor (*exact_norm)(const Tensor&, const Tensor&,
                                                  const Tensor&) = torchs_norm) {
  const auto inputs = inputs_of(c, torch::kCUDA);
  std::vector<Tensor> exact_inputs;
  for (const Tensor& input : inputs) exact_inputs.push_back(input.to(torch::kDouble));
  const auto own = results(norm, {inputs[0], inputs[1], inputs[2]}, inputs[3]);
  const auto exact =
      results(exact_norm, {exact_inputs[0], exact_inputs[1], exact_inputs[2]}, exact_inputs[3]);
  const at::ScalarType types[] = {c.type, c.type, c.parameter_type, c.parameter_type};
  const char* names[] = {"out", "grad of x", "grad of weight", "grad of bias"};
  for (size_t i = 0; i < own.size(); ++i) {
    EXPECT_EQ(own[i].scalar_type(), types[i]);
    EXPECT_EQ(own[i].sizes(), exact[i].sizes());
    EXPECT_LE(loss_of(own[i], exact[i]), allowed)
        << names[i] << ", " << c.rows << " x " << c.width << ", " << c.type;
  }
}

TEST(LayerNorm, OnTheCpuItIsTorchs) {
  const NormCase c{5, 33, torch::kFloat, torch::kFloat};
  const auto inputs = inputs_of(c, torch::kCPU);
  const auto own = results(own_norm, {inputs[0], inputs[1], inputs[2]}, inputs[3]);
  const auto torchs = results(torchs_norm, {inputs[0], inputs[1], inputs[2]}, inputs[3]);
  for (size_t i = 0; i < own.size(); ++i) EXPECT_TRUE(torch::equal(own[i], torchs[i]));
}

TEST(LayerNorm, BothUsesGiveTheirGradients) {
  const NormCase c{5, 33, torch::kDouble, torch::kDouble};
  const auto inputs = inputs_of(c, torch::kCPU);
  const auto own = results(own_norm_twice, {inputs[0], inputs[1], inputs[2]}, inputs[3]);
  const auto torchs = results(torchs_norm, {inputs[0], inputs[1], inputs[2]}, inputs[3]);
  for (size_t i = 0; i < own.size(); ++i) EXPECT_LE(loss_of(own[i], torchs[i]), 1e-12);
}

// Widths about the borders of a group, of a warp's and of a block's registers.
constexpr int64_t kWidths[] = {1,   3,   8,   63,   64,   65,   70,   128,  129,  255,  256,  257,
                               264, 512, 520, 1000, 1024, 1025, 1032, 2048, 2056, 4096, 4100, 8192};

TEST(LayerNorm, OnAGpuEveryWidthIsThatOfDouble) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  for (const int64_t width : kWidths) {
    for (const int64_t rows : {1, 7, 37}) {
      expect_the_exact_values(own_norm, {rows, width, torch::kFloat, torch::kFloat}, 2e-5);
      expect_the_exact_values(own_norm, {rows, width, torch::kBFloat16, torch::kBFloat16}, 1e-2);
    }
    expect_the_exact_values(own_norm, {37, width, torch::kBFloat16, torch::kFloat}, 1e-2);
    expect_the_exact_values(own_norm, {37, width, torch::kHalf, torch::kHalf}, 2e-3);
  }
}

TEST(LayerNorm, OnAGpuManyRowsAreSummedAsInDouble) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  for (const int64_t rows : {4095, 4097, 32768, 33001}) {
    for (const int64_t width : {64, 70, 256, 1024}) {
      expect_the_exact_values(own_norm, {rows, width, torch::kFloat, torch::kFloat}, 2e-5);
      expect_the_exact_values(own_norm, {rows, width, torch::kBFloat16, torch::kBFloat16}, 1e-2);
    }
  }
  expect_the_exact_values(own_norm, {1500, 1600, torch::kFloat, torch::kFloat}, 2e-5);
}

TEST(LayerNorm, OnAGpuTheGradientsOfTwoUsesAreAdded) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  for (const int64_t width : {70, 256, 2048}) {
    expect_the_exact_values(own_norm_twice, {300, width, torch::kFloat, torch::kFloat}, 2e-5);
    expect_the_exact_values(own_norm_twice, {300, width, torch::kBFloat16, torch::kBFloat16}, 3e-2);
  }
  const auto first_alone = [](const Tensor& x, const Tensor& weight, const Tensor& bias) {
    return layer_norm_twice(x, weight, bias, kEps).first;
  };
  const auto second_alone = [](const Tensor& x, const Tensor& weight, const Tensor& bias) {
    return layer_norm_twice(x, weight, bias, kEps).second;
  };
  const NormCase c{300, 256, torch::kFloat, torch::kFloat};
  expect_the_exact_values(first_alone, c, 2e-5);
  expect_the_exact_values(second_alone, c, 2e-5);
}

TEST(LayerNorm, OnAGpuTheGradientOfAnInputUsedBesideItIsAdded) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  for (const int64_t width : {64, 70, 256, 2048}) {
    expect_the_exact_values(own_norm_beside, {300, width, torch::kFloat, torch::kFloat}, 2e-5,
                            torchs_norm_beside);
    expect_the_exact_values(own_norm_beside, {300, width, torch::kBFloat16, torch::kBFloat16}, 1e-2,
                            torchs_norm_beside);
  }
  const NormCase c{300, 64, torch::kFloat, torch::kFloat};
  const auto norm_alone = [](const Tensor& x, const Tensor& weight, const Tensor& bias) {
    return layer_norm_beside(x, weight, bias, kEps).norm;
  };
  expect_the_exact_values(norm_alone, c, 2e-5);
  const auto inputs = inputs_of(c, torch::kCUDA);
  const Tensor x = inputs[0].detach().clone().requires_grad_();
  layer_norm_beside(x, inputs[1], inputs[2], kEps).input.backward(inputs[3]);
  EXPECT_TRUE(torch::equal(x.grad(), inputs[3]));
}

TEST(LayerNorm, OnAGpuEveryRunHasTheSameBits) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  for (const int64_t width : {64, 256, 257, 2048}) {
    const auto inputs = inputs_of({20011, width, torch::kBFloat16, torch::kBFloat16}, torch::kCUDA);
    const auto run = [&] {
      return results(own_norm, {inputs[0], inputs[1], inputs[2]}, inputs[3]);
    };
    const auto first = run();
    for (int n = 0; n < 3; ++n) {
      const auto again = run();
      for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(torch::equal(first[i], again[i]));
    }
  }
}

TEST(LayerNorm, OnAGpuViewsAndEmptyTensorsAreTaken) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  const auto inputs = inputs_of({65, 256, torch::kFloat, torch::kFloat}, torch::kCUDA);
  const Tensor &x = inputs[0], &weight = inputs[1], &bias = inputs[2];
  const auto expect_same = [&](const Tensor& view) {
    EXPECT_LE(loss_of(own_norm(view, weight, bias), torchs_norm(view, weight, bias)), 1e-5);
  };
  expect_same(x.t().contiguous().t());
  // Rows that begin in the middle of a group.
  expect_same(x.flatten().narrow(0, 1, 64 * 256).view({4, 16, 256}));

  const Tensor none = torch::empty({0, 256}, x.options()).requires_grad_();
  const Tensor leaf = weight.detach().clone().requires_grad_();
  const Tensor out = own_norm(none, leaf, bias);
  EXPECT_EQ(out.numel(), 0);
  out.sum().backward();
  EXPECT_EQ(leaf.grad().abs().max().item<float>(), 0);
}

}  // namespace
}  // namespace fmmformer
