// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/models/generation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "fmmformer/models/decoding_session.h"
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

// Bounds decide what is computed, never what is drawn: with top_k the very tokens that all scores
// give, for a model whose clusters hold some of the likeliest words.
TEST(Generation, DrawsWhatTheFullDistributionDoes) {
  ModelConfig config = wikitext_model(copy_attention(6, {FeatureMap::kElu}));
  config.vocabulary = 500, config.cutoffs = {50, 120, 300}, config.initial_std = 0.5;
  const auto model =
      std::dynamic_pointer_cast<const LanguageModel>(make_model(made_small(config), 3));
  const c10::InferenceMode no_bookkeeping;
  constexpr int64_t kBest = 12;
  for (const uint64_t seed : {1, 2, 3}) {
    const GenerationOptions options{.sampling = {.top_k = kBest}, .tokens = 150, .seed = seed};
    const auto text = generate(model, kPrompt, options);
    DecodingSession session(model);
    int64_t tails = 0;
    for (size_t n = 0; n < text.size(); ++n) {
      const auto added = n == 0 ? std::span(kPrompt) : std::span(text).subspan(n - 1, 1);
      const at::Tensor log_p = session.feed(added).all().to(at::kDouble);
      const auto [values, tokens] = log_p.sort(/*stable=*/true, -1, /*descending=*/true);
      const auto [kept, order] = tokens.slice(0, 0, kBest).sort();
      const at::Tensor sums = values.slice(0, 0, kBest).index_select(0, order).exp().cumsum(0);
      Random random(derive_seed(seed, "generation", 0, n));
      const double place = random.uniform() * sums[-1].item<double>();
      const int64_t drawn = kept[sums.le(place).sum().item<int64_t>()].item<int64_t>();
      ASSERT_EQ(text[n], drawn) << "token " << n << ", seed " << seed;
      tails += drawn >= config.cutoffs[0];
    }
    EXPECT_GT(tails, 0);
  }
}

TEST(Generation, WithoutAPromptThereIsNothingToGoOnFrom) {
  EXPECT_THROW(generate(small_model(), {}, {}), c10::ValueError);
}

}  // namespace
}  // namespace fmmformer
