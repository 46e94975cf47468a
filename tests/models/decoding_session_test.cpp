// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/models/decoding_session.h"

#include <gtest/gtest.h>

#include <torch/utils.h>

#include <algorithm>
#include <ctime>

#include "fmmformer/core/random.h"
#include "fmmformer/models/sampling.h"
#include "models/configs.h"
#include "nn/helpers.h"

namespace fmmformer {
namespace {

using namespace fmmformer::testing;
using torch::Tensor;

constexpr int64_t kWindow = 40;  // max_length of made_small

AttentionConfig fmm() {
  AttentionConfig attention = copy_attention(6, {FeatureMap::kElu, FeatureMap::kEluFlip});
  attention.blend.near_initial = 0.7;  // a weight that starts at 0 would hide the near field
  return attention;
}
AttentionConfig band() {
  AttentionConfig attention = copy_attention(6, {});
  attention.blend.near_initial = 0.7;
  return attention;
}

ModelConfig uneven_wikitext(AttentionConfig attention) {
  attention.projections = Projections::kFused;
  ModelConfig config = wikitext_model(std::move(attention));
  config.vocabulary = 50, config.cutoffs = {10, 20, 35};
  config.initial_std = 0.3;  // far from uniform, so that a mistake shows
  return made_small(std::move(config));
}

std::vector<ModelConfig> every_kind() {
  std::vector<ModelConfig> configs;
  for (const auto& attention :
       {fmm(), band(), causal_softmax(), copy_attention(0, {FeatureMap::kTanh1}),
        fast_weight_attention_config(0, {FeatureMap::kElu}),
        fast_weight_attention_config(3, {FeatureMap::kElu, FeatureMap::kEluFlip})}) {
    configs.push_back(uneven_wikitext(attention));
    configs.push_back(small_copy(attention));
  }
  for (const auto positions : {Positions::kLearned, Positions::kSinusoidAdded}) {
    configs.push_back(uneven_wikitext(fmm()));
    configs.back().positions = positions;
  }
  configs.push_back(small_copy(fmm()));
  configs.back().norm = NormPlacement::kPre, configs.back().activation = Activation::kGelu;
  return configs;
}

std::shared_ptr<const LanguageModel> language_model(const ModelConfig& config) {
  return std::dynamic_pointer_cast<const LanguageModel>(make_model(config, 3));
}

std::vector<int64_t> random_tokens(int64_t count, int64_t vocabulary) {
  Random random(5);
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int64_t>(random.below(static_cast<uint64_t>(vocabulary))));
  }
  return tokens;
}

// Where the window of token n begins: the header's formula.
int64_t window_begin(int64_t n) {
  const int64_t half = kWindow - kWindow / 2;
  return n < kWindow ? 0 : half * ((n - kWindow) / half + 1);
}

// log p after token n by a whole pass over its window, filled up with token 7.
Tensor full_pass(const LanguageModel& model, const std::vector<int64_t>& text, int64_t n) {
  const int64_t begin = window_begin(n), count = n - begin + 1;
  Tensor tokens = torch::full({1, kWindow}, 7, torch::kLong);
  for (int64_t i = 0; i < count; ++i) tokens[0][i] = text[static_cast<size_t>(begin + i)];
  at::NoGradGuard no_gradients;
  return model.forward({.tokens = tokens}, {})[0][count - 1].log_softmax(0);
}

// As `fmmformer verify` allows in fp32: relative, root mean square.
constexpr double kAllowed = 1e-5;
double relative_error(const Tensor& value, const Tensor& exact) {
  const auto size = [](const Tensor& x) { return x.to(torch::kDouble).norm().item<double>(); };
  return size(value.to(torch::kDouble) - exact.to(torch::kDouble)) / size(exact);
}

TEST(DecodingSession, PredictsWhatAFullPassOverTheWindowDoes) {
  for (const ModelConfig& config : every_kind()) {
    const auto model = language_model(config);
    const auto text = random_tokens(3 * kWindow, config.vocabulary);
    DecodingSession session(model);
    for (int64_t n = 0; n < std::ssize(text); ++n) {
      const TokenScores scores = session.feed({&text[static_cast<size_t>(n)], 1});
      EXPECT_LT(relative_error(scores.all(), full_pass(*model, text, n)), kAllowed) << n;
    }
  }
}

TEST(DecodingSession, APromptAtOnceIsThePromptTokenByToken) {
  for (const ModelConfig& config : {uneven_wikitext(fmm()), uneven_wikitext(causal_softmax())}) {
    const auto model = language_model(config);
    const auto text = random_tokens(2 * kWindow + 7, config.vocabulary);
    for (const int64_t cut : {1, 12, 39, 40, 41, 60, 61, 87}) {
      DecodingSession session(model);
      session.feed(std::span(text).first(static_cast<size_t>(cut)));
      const TokenScores scores =
          cut == std::ssize(text) ? session.feed({text.data(), 1})
                                  : session.feed(std::span(text).subspan(static_cast<size_t>(cut)));
      auto whole = text;
      if (cut == std::ssize(text)) whole.push_back(text[0]);
      EXPECT_LT(relative_error(scores.all(), full_pass(*model, whole, std::ssize(whole) - 1)),
                kAllowed)
          << cut;
      EXPECT_EQ(session.tokens(), std::ssize(whole));
    }
  }
}

TEST(DecodingSession, WithoutPositionsATextGoesOnWithoutAWindow) {
  ModelConfig config = small_copy(fmm());
  config.positions = Positions::kNone;
  const auto model = language_model(config);
  const auto text = random_tokens(3 * kWindow, config.vocabulary);
  DecodingSession session(model);
  session.feed(std::span(text).first(kWindow + 5));
  const TokenScores scores = session.feed(std::span(text).subspan(kWindow + 5));
  at::NoGradGuard no_gradients;
  const Tensor all = torch::tensor(at::IntArrayRef(text)).unsqueeze(0);
  const Tensor expected = model->forward({.tokens = all}, {})[0][-1].log_softmax(0);
  EXPECT_LT(relative_error(scores.all(), expected), kAllowed);
}

TEST(DecodingSession, ComputesInDoubleToo) {
  for (const ModelConfig& config : {uneven_wikitext(fmm()), uneven_wikitext(causal_softmax())}) {
    const auto model = make_model(config, 3);
    model->to(torch::kDouble);
    const auto lm = std::dynamic_pointer_cast<const LanguageModel>(std::shared_ptr(model));
    const auto text = random_tokens(kWindow + 9, config.vocabulary);
    DecodingSession session(lm);
    Tensor scores;
    for (const int64_t& token : text) scores = session.feed({&token, 1}).all();
    EXPECT_LT(relative_error(scores, full_pass(*lm, text, kWindow + 8)), 1e-7);
  }
}

// One thread's own time: what else the machine does is not counted.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

class OneThread {
 public:
  OneThread() { torch::set_num_threads(1); }
  ~OneThread() { torch::set_num_threads(before_); }

 private:
  int before_ = torch::get_num_threads();
};

TEST(DecodingSession, Token100000CostsWhatToken100Did) {
  const OneThread one_thread;
  const c10::InferenceMode no_bookkeeping;
  ModelConfig config = uneven_wikitext(fmm());
  config.dim = 8, config.layers = 1, config.heads = 1, config.ffn_dim = 8;
  constexpr int64_t kShort = 16;  // tokens of a window
  config.max_length = kShort;
  DecodingSession session(language_model(config));
  // The median of a token around this one; sums of a whole window, which is read again once.
  const auto median_at = [&](int64_t wanted) {
    constexpr int64_t kWindows = 61;
    std::vector<double> durations;
    int64_t token = 0;
    while (session.tokens() < wanted + kWindows / 2 * kShort) {
      const bool is_near = session.tokens() >= wanted - kWindows / 2 * kShort;
      const double begin = is_near ? cpu_seconds() : 0;
      for (int64_t i = 0; i < kShort; ++i) {
        const TokenScores scores = session.feed({&token, 1});
        Random random(static_cast<uint64_t>(session.tokens()));
        token = sample_token(scores, {.top_k = 5}, session.context(), random);
      }
      if (is_near) durations.push_back(cpu_seconds() - begin);
    }
    std::ranges::nth_element(durations, durations.begin() + std::ssize(durations) / 2);
    return durations[durations.size() / 2];
  };
  const double early = median_at(100);
  const int64_t bytes = session.memory_bytes();
  const double late = median_at(100'000);
  EXPECT_GT(session.tokens(), 100'000);
  EXPECT_LT(late, 2 * early);
  EXPECT_EQ(session.memory_bytes(), bytes);
  EXPECT_LE(std::ssize(session.context()), kShort);
}

TEST(DecodingSession, RefusesModelsThatCannotGoOnTokenByToken) {
  ModelConfig two_sided = small_copy(fmm()), by_length = two_sided;
  two_sided.attention.causal = false;
  by_length.attention.normaliser = Normaliser::kInvSqrtLength;
  EXPECT_THROW(DecodingSession{language_model(two_sided)}, c10::ValueError);
  EXPECT_THROW(DecodingSession{language_model(by_length)}, c10::ValueError);
  DecodingSession session(language_model(small_copy(fmm())));
  EXPECT_THROW(session.feed({}), c10::ValueError);
  const int64_t unknown = 11;
  EXPECT_THROW(session.feed({&unknown, 1}), c10::ValueError);
}

}  // namespace
}  // namespace fmmformer
