// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/nn/initialise.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include "fmmformer/nn/layers.h"

namespace fmmformer {
namespace {

using torch::Tensor;

struct Small : torch::nn::Module {
  explicit Small(bool with_extra) {
    if (with_extra) register_module("extra", std::make_shared<Linear>(3, 3));
    linear = register_module("linear", std::make_shared<Linear>(100, 400));
    norm = register_module("norm", std::make_shared<LayerNorm>(5000));
    table = register_module("table", std::make_shared<Embedding>(100, 50));
  }
  std::shared_ptr<Linear> linear;
  std::shared_ptr<LayerNorm> norm;
  std::shared_ptr<Embedding> table;
};

double average(const Tensor& x) { return x.mean().item<double>(); }
double deviation(const Tensor& x) { return x.std().item<double>(); }

TEST(Initialise, TorchsDefaults) {
  Small model(false);
  initialise(model, Initialisation::kTorch, 0.02, 1);
  EXPECT_NEAR(model.linear->weight.max().item<double>(), 0.1, 1e-3);  // 1 / sqrt(100)
  EXPECT_NEAR(model.linear->weight.min().item<double>(), -0.1, 1e-3);
  EXPECT_NEAR(deviation(model.linear->bias), 0.1 / std::sqrt(3.0), 5e-3);
  EXPECT_NEAR(deviation(model.table->weight), 1, 0.05);
  EXPECT_TRUE(model.norm->weight.eq(1).all().item<bool>());
}

TEST(Initialise, NormalEmbeddingsChangesOnlyThose) {
  Small model(false), plain(false);
  initialise(model, Initialisation::kNormalEmbeddings, 0.02, 1);
  initialise(plain, Initialisation::kTorch, 0.02, 1);
  EXPECT_NEAR(deviation(model.table->weight), 0.02, 1e-3);
  EXPECT_TRUE(torch::equal(model.linear->weight, plain.linear->weight));
}

TEST(Initialise, NormalChangesAll) {
  Small model(false);
  initialise(model, Initialisation::kNormal, 0.02, 1);
  EXPECT_NEAR(deviation(model.linear->weight), 0.02, 1e-3);
  EXPECT_TRUE(model.linear->bias.eq(0).all().item<bool>());
  EXPECT_NEAR(average(model.norm->weight), 1, 2e-3);
  EXPECT_NEAR(deviation(model.norm->weight), 0.02, 1e-3);
  EXPECT_TRUE(model.norm->bias.eq(0).all().item<bool>());
}

TEST(Initialise, IsAFunctionOfSeedAndNameOnly) {
  Small a(false), b(true), c(false);
  const Tensor before = torch::rand({1});
  torch::manual_seed(5);
  initialise(a, Initialisation::kTorch, 0.02, 1);
  const Tensor drawn = torch::rand({1});
  torch::manual_seed(5);
  EXPECT_TRUE(torch::equal(drawn, torch::rand({1})));  // the global generator was left alone
  initialise(b, Initialisation::kTorch, 0.02, 1);
  initialise(c, Initialisation::kTorch, 0.02, 2);
  EXPECT_TRUE(torch::equal(a.linear->weight, b.linear->weight));
  EXPECT_FALSE(torch::equal(a.linear->weight, c.linear->weight));
}

}  // namespace
}  // namespace fmmformer
