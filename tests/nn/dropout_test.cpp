// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/nn/dropout.h"

#include <gtest/gtest.h>
#include <torch/types.h>

namespace fmmformer {
namespace {

using torch::Tensor;

Pass training_pass(int64_t step = 0, uint64_t seed = 7) {
  return {.training = true, .dropout_seed = dropout_seed(seed, step, at::kCPU)};
}

constexpr DropoutSite kSite{.probability = 0.3, .site = 5};

TEST(Dropout, DropsTheStatedShareAndKeepsTheMean) {
  const Tensor out = dropout(torch::ones({200, 1000}), kSite, training_pass());
  EXPECT_NEAR(out.eq(0).to(torch::kDouble).mean().item<double>(), 0.3, 0.005);
  EXPECT_NEAR(out.mean().item<double>(), 1, 0.005);
  EXPECT_FLOAT_EQ(out.max().item<float>(), 1 / 0.7f);
}

TEST(Dropout, TheSameSeedGivesTheSameMask) {
  const Tensor x = torch::ones({64, 33});
  EXPECT_TRUE(torch::equal(dropout(x, kSite, training_pass()), dropout(x, kSite, training_pass())));
}

TEST(Dropout, MasksDifferBySiteStepAndRun) {
  const Tensor x = torch::ones({64, 33});
  const Tensor base = dropout(x, kSite, training_pass());
  const auto agreement = [&](const Tensor& other) {
    return base.eq(other).to(torch::kDouble).mean().item<double>();
  };
  const double independent = 0.7 * 0.7 + 0.3 * 0.3;
  EXPECT_NEAR(agreement(dropout(x, {.probability = 0.3, .site = 6}, training_pass())), independent,
              0.05);
  EXPECT_NEAR(agreement(dropout(x, kSite, training_pass(1))), independent, 0.05);
  EXPECT_NEAR(agreement(dropout(x, kSite, training_pass(0, 8))), independent, 0.05);
}

TEST(Dropout, NothingHappensInInferenceOrWithProbabilityZero) {
  const Tensor x = torch::randn({3, 5}), y = torch::randn({3, 5});
  for (const auto& [site, pass] :
       {std::pair(kSite, Pass{}), std::pair(DropoutSite{.probability = 0}, training_pass())}) {
    EXPECT_TRUE(torch::equal(dropout(x, site, pass), x));
    EXPECT_TRUE(torch::equal(residual_dropout(y, x, {}, site, pass), y + x));
    EXPECT_TRUE(torch::equal(relu_dropout(x.clone(), {}, site, pass), x.relu()));
  }
}

TEST(Dropout, EveryLengthEqualsTheFactorsFromPlainTensorOperations) {
  const Pass pass = training_pass();
  for (const int64_t length : {1, 3, 4, 5, 63, 64, 65, 127, 8191, 8192, 8193, 50001}) {
    const Tensor factors = dropout_factors({length}, kSite, pass.dropout_seed);
    const Tensor x = torch::randn({length}), y = torch::randn({length});
    EXPECT_TRUE(torch::equal(dropout(x, kSite, pass), x * factors)) << length;
    // Not bit by bit: the kernel may fuse the product and the sum.
    EXPECT_TRUE(
        torch::allclose(residual_dropout(y, x, {}, kSite, pass), y + x * factors, 1e-5, 1e-6))
        << length;
    EXPECT_TRUE(torch::equal(relu_dropout(x.clone(), {}, kSite, pass), x.relu() * factors))
        << length;
  }
}

TEST(Dropout, OtherTypesAndStridesGetTheSameMask) {
  const Pass pass = training_pass();
  const Tensor x = torch::randn({40, 24});
  const Tensor kept = dropout(x, kSite, pass).ne(0);
  for (const auto type : {torch::kDouble, torch::kBFloat16, torch::kHalf}) {
    const Tensor out = dropout(x.to(type), kSite, pass);
    EXPECT_EQ(out.scalar_type(), type);
    EXPECT_TRUE(torch::equal(out.ne(0), kept));
  }
  EXPECT_TRUE(torch::equal(dropout(x.t().contiguous().t(), kSite, pass).ne(0), kept));
}

TEST(Dropout, GradientsCarryTheSameMask) {
  const Pass pass = training_pass();
  const Tensor factors = dropout_factors({50, 70}, kSite, pass.dropout_seed);
  const Tensor x = torch::randn({50, 70}, torch::requires_grad()),
               y = torch::randn({50, 70}, torch::requires_grad()), grad = torch::randn({50, 70});

  dropout(x, kSite, pass).backward(grad);
  EXPECT_TRUE(torch::equal(x.grad(), grad * factors));

  x.mutable_grad().reset();
  residual_dropout(y, x, {}, kSite, pass).backward(grad);
  EXPECT_TRUE(torch::equal(x.grad(), grad * factors));
  EXPECT_TRUE(torch::equal(y.grad(), grad));

  x.mutable_grad().reset();
  relu_dropout(x * 1, {}, kSite, pass).backward(grad);
  EXPECT_TRUE(torch::equal(x.grad(), grad * factors * x.detach().gt(0)));
}

TEST(Dropout, ABiasIsAddedToEveryRowBeforeDropping) {
  const Pass pass = training_pass();
  for (const auto type : {torch::kFloat, torch::kDouble}) {
    for (const int64_t columns : {1, 3, 16, 70, 512}) {
      const auto options = torch::dtype(type).requires_grad(true);
      const Tensor x = torch::randn({37, columns}, options),
                   y = torch::randn({37, columns}, options),
                   bias = torch::randn({columns}, options),
                   grad = torch::randn({37, columns}, type);
      const Tensor factors = dropout_factors({37, columns}, kSite, pass.dropout_seed).to(type);
      const auto results = [&](const Tensor& out) {
        for (const Tensor& t : {x, y, bias}) t.mutable_grad() = torch::zeros_like(t);
        out.backward(grad);
        return torch::cat({out.detach(), x.grad(), y.grad(), bias.grad().unsqueeze(0)});
      };
      const auto same = [](const Tensor& a, const Tensor& b) {
        return torch::allclose(a, b, 1e-5, 2e-5);
      };
      for (const Pass& p : {pass, Pass{}}) {
        const Tensor f = p.training ? factors : torch::ones_like(factors);
        EXPECT_TRUE(
            same(results(residual_dropout(y, x, bias, kSite, p)), results(y + (x + bias) * f)))
            << columns;
        EXPECT_TRUE(
            same(results(relu_dropout(x * 1, bias, kSite, p)), results((x + bias).relu() * f)))
            << columns;
      }
    }
  }
}

/// out, and the gradients of x, residual and bias, for all three kinds of dropout on a device.
std::vector<Tensor> results_on(at::Device device, at::ScalarType type, int64_t columns) {
  const Pass pass{.training = true, .dropout_seed = dropout_seed(7, 0, device)};
  const auto leaf = [&](int64_t rows, int64_t seed) {
    const Tensor values =
        torch::arange(rows * columns, torch::kDouble).mul(0.37 + 0.01 * seed).sin();
    return values.view({rows, columns}).to(device, type).requires_grad_();
  };
  std::vector<Tensor> results;
  const auto add = [&](const Tensor& out, const std::vector<Tensor>& leaves) {
    out.backward(leaf(37, 9).detach());
    results.push_back(out.detach().cpu());
    for (const Tensor& t : leaves) results.push_back(t.grad().cpu());
  };
  const Tensor a = leaf(37, 1), b = leaf(37, 2), c = leaf(37, 3), d = leaf(37, 4),
               bias = leaf(1, 5), other_bias = leaf(1, 6);
  add(dropout(a, kSite, pass), {a});
  add(residual_dropout(b, c, bias.view({columns}), kSite, pass), {b, c, bias});
  add(relu_dropout(d * 1, other_bias.view({columns}), kSite, pass), {d, other_bias});
  return results;
}

TEST(Dropout, AGpuDrawsTheMasksOfTheCpu) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  // 8 and 512: whole groups of elements; the others end within one.
  for (const int64_t columns : {1, 3, 8, 70, 512}) {
    for (const auto type : {torch::kFloat, torch::kBFloat16, torch::kHalf, torch::kDouble}) {
      const auto here = results_on(torch::kCPU, type, columns);
      const auto there = results_on(torch::kCUDA, type, columns);
      const double allowed = type == torch::kBFloat16 ? 3e-2 : type == torch::kHalf ? 4e-3 : 1e-5;
      for (size_t i = 0; i < here.size(); ++i) {
        EXPECT_EQ(there[i].scalar_type(), type);
        EXPECT_TRUE(torch::allclose(here[i].to(torch::kDouble), there[i].to(torch::kDouble),
                                    allowed, 4 * allowed))
            << "result " << i << " of type " << type << ", " << columns << " columns";
      }
      for (const size_t out : {size_t{0}, size_t{6}}) {
        EXPECT_TRUE(torch::equal(here[out].ne(0), there[out].ne(0))) << out;
      }
    }
  }
}

TEST(Dropout, OnAGpuFp32IsBitForBitThatOfPlainTensorOperations) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  const Pass pass{.training = true, .dropout_seed = dropout_seed(7, 0, at::kCUDA)};
  for (const int64_t length : {1, 3, 4, 5, 63, 64, 65, 8191, 8192, 50001}) {
    const auto options = torch::dtype(torch::kFloat).device(torch::kCUDA);
    const Tensor factors = dropout_factors({length}, kSite, pass.dropout_seed);
    const Tensor x = torch::randn({length}, options), y = torch::randn({length}, options);
    EXPECT_TRUE(torch::equal(dropout(x, kSite, pass), x * factors)) << length;
    EXPECT_TRUE(torch::equal(residual_dropout(y, x, {}, kSite, pass), y + x * factors)) << length;
    EXPECT_TRUE(torch::equal(relu_dropout(x.clone(), {}, kSite, pass), x.relu() * factors))
        << length;
    // A view that begins in the middle of a group.
    if (length < 64) continue;
    const Tensor part = x.narrow(0, 1, length - 1);
    EXPECT_TRUE(torch::equal(dropout(part, kSite, pass), part * factors.narrow(0, 0, length - 1)));
  }
}

TEST(Dropout, OnAGpuGeluWithItsBiasAndGradientsIsThatOfDouble) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  const Pass drops{.training = true, .dropout_seed = dropout_seed(7, 0, at::kCUDA)}, plain{};
  for (const auto& [type, allowed] : {std::pair(torch::kFloat, 1e-6), {torch::kBFloat16, 1e-2}}) {
    for (const auto& [rows, columns] : {std::pair(1, 8), {37, 128}, {5000, 64}, {3, 7}}) {
      for (const Pass& pass : {drops, plain}) {
        const auto options = torch::dtype(type).device(torch::kCUDA);
        const auto leaf = [](const Tensor& x) { return x.detach().clone().requires_grad_(); };
        const Tensor x = leaf(torch::randn({rows, columns}, options) * 2),
                     bias = leaf(torch::randn({columns}, options)),
                     grad = torch::randn({rows, columns}, options);
        const Tensor exact_x = leaf(x.to(torch::kDouble)),
                     exact_bias = leaf(bias.to(torch::kDouble));
        const Tensor out = gelu_dropout(x, bias, kSite, pass);
        Tensor exact = at::gelu(exact_x + exact_bias);
        if (pass.training)
          exact = exact * dropout_factors(x.sizes(), kSite, pass.dropout_seed).to(torch::kDouble);
        out.backward(grad), exact.backward(grad.to(torch::kDouble));
        const auto expect_close = [&](const Tensor& a, const Tensor& b) {
          const double error = ((a.to(torch::kDouble) - b).norm() / b.norm()).item<double>();
          EXPECT_LT(error, allowed) << rows << " x " << columns << " " << type;
        };
        expect_close(out.detach(), exact.detach());
        expect_close(x.grad(), exact_x.grad());
        expect_close(bias.grad(), exact_bias.grad());
      }
    }
  }
}

TEST(Dropout, OnAGpuGeluOfHalfTypesIsExactButForRoundingFarIntoItsTail) {
  if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  for (const auto& [type, rounding] : {std::pair(torch::kBFloat16, 5e-3), {torch::kHalf, 1.2e-3}}) {
    const Tensor exact_x = torch::linspace(-4, 8, 4096, torch::kDouble).to(type).to(torch::kDouble);
    const Tensor leaf = exact_x.detach().clone().requires_grad_();
    at::gelu(leaf).sum().backward();
    const Tensor x = exact_x.to(torch::kCUDA, type).view({64, 64}).requires_grad_();
    const Tensor bias = torch::zeros({64}, x.options().requires_grad(true));
    const Tensor out = gelu_dropout(x, bias, kSite, Pass{});
    out.backward(torch::ones_like(out));
    // As a part of what is allowed: the type's own rounding, and `least` where that is nothing.
    const auto worst = [part = rounding](const Tensor& value, const Tensor& exact, double least) {
      const Tensor error = (value.cpu().to(torch::kDouble).flatten() - exact).abs();
      return (error / (part * exact.abs() + least)).max().item<double>();
    };
    EXPECT_LT(worst(out.detach(), at::gelu(exact_x), 1e-6), 1) << type;
    EXPECT_LT(worst(x.grad(), leaf.grad(), 1e-5), 1) << type;
  }
}

TEST(Dropout, ATrainingPassWithoutASeedIsAnError) {
  const Pass pass{.training = true};
  EXPECT_THROW(dropout(torch::ones({2}), kSite, pass), c10::ValueError);
  EXPECT_THROW(residual_dropout(torch::ones({2}), torch::ones({2}), {}, kSite, pass),
               c10::ValueError);
}

}  // namespace
}  // namespace fmmformer
