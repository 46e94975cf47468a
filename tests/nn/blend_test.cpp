// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/nn/blend.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <functional>
#include <string>

namespace fmmformer {
namespace {

using torch::Tensor;

constexpr int64_t kHeads = 2, kChannels = 3;

/// Weights broadcast in full: near [H, Dv], far [r, H, Dv]; ones where the blend gives none.
struct FullWeights {
  Tensor near, far;
};
FullWeights full(const BlendWeights& weights, int64_t kernels) {
  const Tensor one = torch::ones({1});
  return {weights.near_weight.value_or(one).expand({kHeads, kChannels}),
          weights.far_weight.value_or(one).expand({kernels, kHeads, kChannels})};
}

int64_t parameter_count(const torch::nn::Module& module) {
  int64_t count = 0;
  for (const Tensor& parameter : module.parameters()) count += parameter.numel();
  return count;
}

Blend made(const BlendConfig& config, const BlendFields& fields) {
  return Blend(blend_rule(config, fields), fields, kHeads, kChannels);
}

// One row of the authors' table: the weights at the start, and how many numbers are learned.
struct Row {
  std::string name;
  BlendPreset preset;
  BlendFields fields;
  double near;
  std::vector<double> far;
  int64_t parameters;
};

class BlendRows : public ::testing::TestWithParam<Row> {};

TEST_P(BlendRows, StartAndParametersAreTheTables) {
  const Row& row = GetParam();
  const Blend blend = made({.rule = row.preset}, row.fields);
  const BlendWeights weights = blend.forward();
  const auto [near, far] = full(weights, row.fields.kernels);
  if (row.fields.near) {
    EXPECT_TRUE(torch::allclose(near, torch::full({kHeads, kChannels}, row.near)));
  } else {
    EXPECT_FALSE(weights.near_weight);
  }
  for (size_t l = 0; l < row.far.size(); ++l) {
    EXPECT_TRUE(
        torch::allclose(far[static_cast<int64_t>(l)], torch::full({kHeads, kChannels}, row.far[l])))
        << l;
  }
  EXPECT_EQ(parameter_count(blend), row.parameters);
}

constexpr int64_t kAll = kHeads * kChannels;
const double kHalf = 0.5, kSigmoidOfOne = 1 / (1 + std::exp(-1.0));

INSTANTIATE_TEST_SUITE_P(
    Facts, BlendRows,
    ::testing::Values(
        Row{"sum", BlendPreset::kSum, {true, 2}, 1, {1, 1}, 0},
        Row{"paper",
            BlendPreset::kPaper,
            {true, 2},
            kHalf,
            {kSigmoidOfOne, kSigmoidOfOne},
            2 * kHeads},
        Row{"paper_linear", BlendPreset::kPaper, {false, 1}, 1, {kSigmoidOfOne}, kHeads},
        Row{"copy_rank1", BlendPreset::kCopy, {false, 1}, 1, {1}, kAll},
        Row{"copy_rank3", BlendPreset::kCopy, {false, 3}, 1, {1. / 3, 1. / 3, 1. / 3}, 3 * kAll},
        Row{"copy_rank2_band", BlendPreset::kCopy, {true, 2}, 0, {0.5, 0.5}, 3 * kAll},
        Row{"copy_band", BlendPreset::kCopy, {true, 0}, 0, {}, kAll},
        Row{"listops1", BlendPreset::kListops, {true, 1}, 1, {0}, 2 * kHeads},
        Row{"listops2", BlendPreset::kListops, {true, 2}, 1, {0, 0}, 2 * kHeads + 2},
        Row{"listops_band", BlendPreset::kListops, {true, 0}, 1, {}, 0},
        Row{"listops_linear", BlendPreset::kListops, {false, 1}, 1, {1}, 0},
        Row{"text1", BlendPreset::kText, {true, 1}, 1, {0}, kAll},
        Row{"text2", BlendPreset::kText, {true, 2}, 1, {0, 0}, kAll},
        Row{"retrieval1", BlendPreset::kRetrieval, {true, 1}, 0, {1}, kHeads},
        Row{"retrieval2", BlendPreset::kRetrieval, {true, 2}, 0, {1, 0}, kHeads + 2},
        Row{"image1", BlendPreset::kImage, {true, 1}, 1, {0}, kAll},
        Row{"image2", BlendPreset::kImage, {true, 2}, 1, {0, 0}, kAll + 1},
        Row{"pathfinder1", BlendPreset::kPathfinder, {true, 1}, 0.5, {0.5}, 1},
        Row{"pathfinder2", BlendPreset::kPathfinder, {true, 2}, 0.5, {0.5, 0}, 2},
        Row{"language_model1", BlendPreset::kLanguageModel, {true, 1}, 0, {1}, kAll},
        Row{"language_model2", BlendPreset::kLanguageModel, {true, 2}, 0, {0.5, 0.5}, kAll},
        Row{"language_model_band", BlendPreset::kLanguageModel, {true, 0}, 1, {}, 0},
        Row{"fast_weights1", BlendPreset::kFastWeights, {true, 1}, 0, {1}, 2 * kAll},
        Row{"fast_weights2", BlendPreset::kFastWeights, {true, 2}, 0, {1, 0}, 2 * kAll + 2},
        Row{"fast_weights_and_linear", BlendPreset::kFastWeights, {false, 2}, 1, {1, 0}, 2},
        Row{"fast_weights_alone", BlendPreset::kFastWeights, {false, 1}, 1, {1}, 0}),
    [](const auto& info) { return info.param.name; });

void set(Blend& blend, const std::string& name, double value) {
  at::NoGradGuard no_gradients;
  blend.named_parameters()[name].fill_(value);
}

TEST(Blend, ListopsMultipliesTheFarWeightAndItsCoefficients) {
  Blend blend = made({.rule = BlendPreset::kListops}, {true, 2});
  set(blend, "far", 3), set(blend, "kernel_0", 5), set(blend, "kernel_1", 7);
  const auto [near, far] = full(blend.forward(), 2);
  EXPECT_TRUE(far[0].eq(15).all().item<bool>());
  EXPECT_TRUE(far[1].eq(21).all().item<bool>());
}

TEST(Blend, PathfinderTiesTheFarWeightToTheNearOne) {
  Blend blend = made({.rule = BlendPreset::kPathfinder}, {true, 2});
  set(blend, "near", 0.25), set(blend, "kernel_1", 2);
  const auto [near, far] = full(blend.forward(), 2);
  EXPECT_TRUE(torch::allclose(far[0], torch::full({kHeads, kChannels}, 0.75)));
  EXPECT_TRUE(torch::allclose(far[1], torch::full({kHeads, kChannels}, 1.5)));
}

TEST(Blend, TextTakesTheMeanOfTheKernels) {
  Blend blend = made({.rule = BlendPreset::kText}, {true, 2});
  set(blend, "far", 3);
  EXPECT_TRUE(full(blend.forward(), 2).far.eq(1.5).all().item<bool>());
}

TEST(Blend, DetailsOverrideARule) {
  const BlendConfig config{.rule = BlendPreset::kSum,
                           .near = WeightSource::kLearned,
                           .near_shape = WeightShape::kPerHead,
                           .near_initial = 0.5,
                           .far_initial = 2,
                           .kernels = WeightSource::kLearned,
                           .kernel_initial = std::vector<double>{1, 3}};
  const Blend blend = made(config, {true, 2});
  EXPECT_EQ(parameter_count(blend), kHeads + 2);
  const auto [near, far] = full(blend.forward(), 2);
  EXPECT_TRUE(near.eq(0.5).all().item<bool>());
  EXPECT_TRUE(far[1].eq(6).all().item<bool>());
}

TEST(Blend, NormalisedWeightsSumToOne) {
  for (const auto preset : {BlendPreset::kSum, BlendPreset::kPaper, BlendPreset::kPathfinder}) {
    const BlendConfig config{.rule = preset, .normalise = true};
    const auto [near, far] = full(made(config, {true, 2}).forward(), 2);
    EXPECT_TRUE(torch::allclose(near + far.sum(0), torch::ones({kHeads, kChannels})));
  }
}

TEST(Blend, GradientsReachEveryParameter) {
  for (const EnumName<BlendPreset>& preset : EnumTable<BlendPreset>::entries()) {
    const Blend blend = made({.rule = preset.value}, {true, 2});
    // Away from the start, where zeros times zeros would hide a gradient.
    {
      at::NoGradGuard no_gradients;
      for (Tensor& parameter : blend.parameters()) parameter.add_(0.3);
    }
    const auto [near, far] = full(blend.forward(), 2);
    const Tensor sum =
        (near * torch::randn_like(near)).sum() + (far * torch::randn_like(far)).sum();
    if (sum.requires_grad()) sum.backward();
    for (const auto& parameter : blend.named_parameters()) {
      ASSERT_TRUE(parameter.value().grad().defined()) << preset.name << " " << parameter.key();
      EXPECT_TRUE(parameter.value().grad().ne(0).all().item<bool>())
          << preset.name << " " << parameter.key();
    }
  }
}

TEST(Blend, StaysInFp32WhenTheModelGoesToHalfPrecision) {
  Blend blend = made({.rule = BlendPreset::kListops}, {true, 2});
  blend.to(torch::kBFloat16);
  for (const Tensor& parameter : blend.parameters()) {
    EXPECT_EQ(parameter.scalar_type(), torch::kFloat);
  }
  blend.to(torch::kDouble);
  EXPECT_EQ(blend.forward().near_weight->scalar_type(), torch::kDouble);
}

TEST(Blend, ContradictionsAreErrors) {
  const BlendFields both{true, 2}, far_only{false, 1};
  EXPECT_THROW(blend_rule({.near = WeightSource::kTied}, both), std::invalid_argument);
  EXPECT_THROW(blend_rule({.far = WeightSource::kTied}, far_only), std::invalid_argument);
  EXPECT_THROW(blend_rule({.kernel_initial = std::vector<double>{1}}, both), std::invalid_argument);
  EXPECT_THROW(blend_rule({.kernels = WeightSource::kTied}, both), std::invalid_argument);
}

}  // namespace
}  // namespace fmmformer
