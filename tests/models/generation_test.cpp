// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/models/generation.h"

#include <gtest/gtest.h>

#include "models/configs.h"

namespace fmmformer {
namespace {

using namespace fmmformer::testing;

std::shared_ptr<const LanguageModel> small_model() {
  ModelConfig config = wikitext_model(copy_attention(6, {FeatureMap::kElu}));
  config.vocabulary = 50, config.cutoffs = {10, 20, 35}, config.initial_std = 0.3;
  return std::dynamic_pointer_cast<const LanguageModel>(make_model(made_small(config), 3));
}

const std::vector<int64_t> kPrompt = {3, 1, 4, 1, 5};

TEST(Generation, TheSameSeedGivesTheSameTextAndAnotherSeedAnother) {
  const auto model = small_model();
  const auto text = [&](uint64_t seed, int64_t sample) {
    return generate(model, kPrompt, {.tokens = 60, .seed = seed, .sample = sample});
  };
  EXPECT_EQ(text(1, 0), text(1, 0));
  EXPECT_NE(text(1, 0), text(2, 0));
  EXPECT_NE(text(1, 0), text(1, 1));
}

TEST(Generation, AShorterTextIsTheBeginOfALongerOne) {
  const auto model = small_model();
  auto text = generate(model, kPrompt, {.tokens = 60});
  ASSERT_EQ(text.size(), 60u);
  text.resize(25);
  EXPECT_EQ(generate(model, kPrompt, {.tokens = 25}), text);
}

TEST(Generation, TokensAreToldAsTheyComeAndCanBeStopped) {
  std::vector<int64_t> told;
  const auto text = generate(small_model(), kPrompt, {.tokens = 60}, [&](int64_t token) {
    told.push_back(token);
    return told.size() < 7;
  });
  EXPECT_EQ(text.size(), 7u);
  EXPECT_EQ(told, text);
}

TEST(Generation, WithoutAPromptThereIsNothingToGoOnFrom) {
  EXPECT_THROW(generate(small_model(), {}, {}), c10::ValueError);
}

}  // namespace
}  // namespace fmmformer
