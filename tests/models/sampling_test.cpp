// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/models/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

namespace fmmformer {
namespace {

constexpr int kDraws = 40'000;

/// p of 12 tokens in three parts of 4, 3 and 5, the first with most of the mass.
const std::vector<double> kP = {0.30, 0.20, 0.10, 0.05, 0.09, 0.02,
                                0.01, 0.08, 0.06, 0.04, 0.03, 0.02};

class Scores {
 public:
  explicit Scores(std::vector<double> p = kP, double width = 0) : p_(std::move(p)), width_(width) {}

  TokenScores fresh() {
    std::vector<TokenScores::Part> parts = {{0, 4, 0}, {4, 3, 0}, {7, 5, 0}};
    for (TokenScores::Part& part : parts) {
      const auto begin = p_.begin() + part.begin;
      part.log_mass = std::log(std::accumulate(begin, begin + part.size, 0.0));
    }
    const auto compute = [this, parts](size_t i) {
      ++computed[i];
      const double* begin = p_.data() + parts[i].begin;
      return at::log(at::tensor(at::ArrayRef<double>(begin, begin + parts[i].size)));
    };
    if (width_ == 0) return {parts, compute};
    return {parts, compute, [this, parts](size_t i, TokenScores::Sharpness sharpness) {
              return bounds(parts[i], sharpness);
            }};
  }

  std::vector<int> computed = {0, 0, 0};  // how often each part was

 private:
  /// Anywhere around log p; each sharper one a tenth as wide.
  TokenScores::Bounds bounds(const TokenScores::Part& part, TokenScores::Sharpness sharpness) {
    const double width = width_ * std::pow(0.1, static_cast<int>(sharpness));
    TokenScores::Bounds bounds;
    for (int64_t i = part.begin; i < part.begin + part.size; ++i) {
      const double log_p = std::log(p_[static_cast<size_t>(i)]);
      bounds.low.push_back(static_cast<float>(log_p - width * noise_.uniform() - 1e-6));
      bounds.high.push_back(static_cast<float>(log_p + width * noise_.uniform() + 1e-6));
    }
    return bounds;
  }

  std::vector<double> p_;
  double width_;
  Random noise_{7};
};

std::vector<double> frequencies(Scores& scores, const SamplingOptions& options,
                                std::vector<int64_t> recent = {}) {
  std::vector<double> counts(kP.size(), 0);
  Random random(1);
  for (int i = 0; i < kDraws; ++i) {
    counts[static_cast<size_t>(sample_token(scores.fresh(), options, recent, random))] +=
        1.0 / kDraws;
  }
  return counts;
}

// What the options' description says, from all probabilities.
std::vector<double> expected(const SamplingOptions& options, const std::set<size_t>& recent = {}) {
  std::vector<double> p = kP;
  for (const size_t token : recent) p[token] = std::pow(p[token], options.repetition_penalty);
  for (double& value : p) value = std::pow(value, 1 / options.temperature);
  std::vector<size_t> order(p.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return p[a] > p[b]; });
  const auto keep = [&](size_t count) {
    for (size_t i = count; i < order.size(); ++i) p[order[i]] = 0;
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& value : p) value /= sum;
  };
  keep(options.top_k == 0 ? p.size() : static_cast<size_t>(options.top_k));
  size_t kept = 0;
  for (double sum = 0; kept < p.size() && (kept == 0 || sum < options.top_p); ++kept) {
    sum += p[order[kept]];
  }
  keep(kept);
  return p;
}

void expect_near(const std::vector<double>& drawn, const std::vector<double>& wanted,
                 const SamplingOptions& options) {
  for (size_t i = 0; i < kP.size(); ++i) {
    const double deviation = std::sqrt(wanted[i] * (1 - wanted[i]) / kDraws);
    EXPECT_NEAR(drawn[i], wanted[i], 4.5 * deviation + 1e-12)
        << "token " << i << ", temperature " << options.temperature << ", top_k " << options.top_k
        << ", top_p " << options.top_p << ", penalty " << options.repetition_penalty;
  }
}

TEST(Sampling, TokensComeAsOftenAsTheirProbabilitiesSay) {
  const SamplingOptions all[] = {{},
                                 {.temperature = 0.5},
                                 {.temperature = 1.7},
                                 {.top_k = 3},
                                 {.top_k = 7},
                                 {.top_k = 100},
                                 {.top_p = 0.45},
                                 {.top_p = 0.9},
                                 {.temperature = 0.7, .top_p = 0.9},
                                 {.temperature = 1.3, .top_k = 6, .top_p = 0.8},
                                 {.temperature = 0.8, .top_k = 5}};
  for (const SamplingOptions& options : all) {
    for (const double width : {0.0, 0.2, 2.0}) {
      Scores scores(kP, width);
      expect_near(frequencies(scores, options), expected(options), options);
    }
  }
}

TEST(Sampling, TheRepetitionPenaltyRaisesRecentTokensToAPower) {
  const SamplingOptions all[] = {{.repetition_penalty = 1.4},
                                 {.top_k = 4, .repetition_penalty = 2},
                                 {.top_p = 0.7, .repetition_penalty = 1.5},
                                 {.temperature = 0.8, .repetition_penalty = 1.2}};
  for (const SamplingOptions& options : all) {
    for (const double width : {0.0, 0.5}) {
      Scores scores(kP, width);
      // However often a token occurred, it is penalised once.
      expect_near(frequencies(scores, options, {0, 8, 0, 4, 0}), expected(options, {0, 4, 8}),
                  options);
    }
  }
}

/// Everything computed, weighed and sorted; the first token whose cumulated weight exceeds a share
/// of all that is kept.
int64_t naive_token(const TokenScores& scores, const SamplingOptions& options,
                    const std::set<int64_t>& recent, Random& random) {
  const at::Tensor log_p = scores.all();
  struct Word {
    double score;
    int64_t token;
  };
  std::vector<Word> words;
  for (int64_t i = 0; i < log_p.numel(); ++i) {
    const double penalty = recent.contains(i) ? options.repetition_penalty : 1;
    words.push_back({penalty * log_p[i].item<float>() / options.temperature, i});
  }
  std::ranges::stable_sort(words, [](const Word& a, const Word& b) { return a.score > b.score; });
  words.resize(std::min(words.size(), static_cast<size_t>(options.top_k)));
  const double highest = words[0].score;
  const auto weight = [&](const Word& word) { return std::exp(word.score - highest); };
  double all = 0, sum = 0;
  for (const Word& word : words) all += weight(word);
  size_t kept = 0;
  while (kept < words.size() && (kept == 0 || sum < options.top_p * all)) {
    sum += weight(words[kept++]);
  }
  words.resize(kept);
  std::ranges::sort(words, {}, &Word::token);
  double place = random.uniform() * sum;
  for (const Word& word : words) {
    place -= weight(word);
    if (place < 0) return word.token;
  }
  return words.back().token;
}

TEST(Sampling, OneOfTheLikeliestIsTheOneThatANaiveSamplerDraws) {
  // Many ties, within parts and across them.
  const std::vector<double> tied = {.05, .2, .05, .2, .1, .05, .05, .1, .05, .05, .05, .05};
  const std::vector<int64_t> recent = {1, 4, 9};
  for (const std::vector<double>& p : {kP, tied}) {
    for (const SamplingOptions& options : {SamplingOptions{.top_k = 1},
                                           {.top_k = 2},
                                           {.temperature = 0.8, .top_k = 5},
                                           {.temperature = 1.5, .top_k = 7, .top_p = 0.8},
                                           {.top_k = 4, .repetition_penalty = 1.3},
                                           {.temperature = 0.7, .top_k = 40, .top_p = 0.95},
                                           {.top_k = 12, .repetition_penalty = 2}}) {
      for (const double width : {0.0, 0.05, 1.0}) {
        Scores scores(p, width);
        for (uint64_t seed = 0; seed < 100; ++seed) {
          Random ours(seed), naive(seed);
          EXPECT_EQ(sample_token(scores.fresh(), options, recent, ours),
                    naive_token(scores.fresh(), options, {1, 4, 9}, naive))
              << "top_k " << options.top_k << ", width " << width << ", seed " << seed;
        }
      }
    }
  }
}

TEST(Sampling, BoundsSpareTheWorkOfComputing) {
  Random random(3);
  Scores two(kP, 0.1);  // 0.09 and 0.08 are below 0.20, and their bounds say so
  sample_token(two.fresh(), {.top_k = 2}, {}, random);
  EXPECT_EQ(two.computed, (std::vector{1, 0, 0}));
  Scores draws(kP, 0.1);  // a word is kept unless its draw falls between sharp bounds
  frequencies(draws, {});
  EXPECT_LT(draws.computed[1] + draws.computed[2], 0.02 * kDraws);
  Scores nucleus(kP, 0.01);
  frequencies(nucleus, {.temperature = 0.8, .top_p = 0.95});
  EXPECT_LT(nucleus.computed[1] + nucleus.computed[2], 0.1 * kDraws);
}

TEST(Sampling, TemperatureZeroIsTheMostLikelyTokenAndTiesGoToTheLower) {
  Random random(3);
  for (const double temperature : {0.0, 1e-9}) {
    Scores scores;
    EXPECT_EQ(sample_token(scores.fresh(), {.temperature = temperature}, {}, random), 0);
    Scores in_a_cluster({.01, .01, .01, .01, .02, .6, .02, .06, .06, .06, .06, .08});
    EXPECT_EQ(sample_token(in_a_cluster.fresh(), {.temperature = temperature}, {}, random), 5);
  }
  Scores narrow;
  EXPECT_EQ(sample_token(narrow.fresh(), {.top_p = 0}, {}, random), 0);
  Scores tied({.05, .2, .05, .2, .1, .05, .05, .1, .05, .05, .05, .05});
  EXPECT_EQ(sample_token(tied.fresh(), {.temperature = 0}, {}, random), 1);
}

TEST(Sampling, OnlyPartsThatCanMatterAreComputed) {
  Random random(3);
  Scores greedy;  // 0.30 beats the masses 0.12 and 0.23 as wholes
  sample_token(greedy.fresh(), {.temperature = 0}, {}, random);
  EXPECT_EQ(greedy.computed, (std::vector{1, 0, 0}));
  Scores two;  // 0.20 does not beat 0.23: that part must be looked at, and the other not
  sample_token(two.fresh(), {.top_k = 2}, {}, random);
  EXPECT_EQ(two.computed, (std::vector{1, 0, 1}));
  Scores nucleus;  // the first is in it, whatever the clusters hold
  frequencies(nucleus, {.temperature = 0.7, .top_p = 0.5});
  EXPECT_LT(nucleus.computed[1] + nucleus.computed[2], kDraws);
  Scores all;  // plain sampling: a part is computed as often as it is drawn
  frequencies(all, {});
  EXPECT_EQ(all.computed[0], kDraws);
  EXPECT_NEAR(all.computed[1], 0.12 * kDraws, 0.01 * kDraws);
  EXPECT_NEAR(all.computed[2], 0.23 * kDraws, 0.01 * kDraws);
}

TEST(Sampling, AModelThatSaysNothingIsAnErrorAndNoEndlessSearch) {
  Random random(3);
  for (const double broken : {std::nan(""), 1 / 0.0}) {
    Scores head({.3, broken, .1, .1, .1, .1, .1, .04, .04, .04, .04, .04});
    EXPECT_THROW(sample_token(head.fresh(), {}, {}, random), c10::Error);
    Scores cluster({.01, .01, .01, .01, broken, .1, .1, .04, .04, .04, .04, .04});
    EXPECT_THROW(sample_token(cluster.fresh(), {.top_k = 12}, {}, random), c10::Error);
    EXPECT_THROW(sample_token(cluster.fresh(), {}, {}, random), c10::Error);
  }
}

TEST(Sampling, RefusesOptionsThatMakeNoSense) {
  Scores scores;
  Random random(3);
  const SamplingOptions wrong[] = {
      {.temperature = -1}, {.temperature = std::nan("")}, {.top_k = -1},
      {.top_p = 1.5},      {.repetition_penalty = 0.5},   {.top_p = -0.1}};
  for (const SamplingOptions& options : wrong) {
    EXPECT_THROW(sample_token(scores.fresh(), options, {}, random), c10::ValueError);
  }
}

TEST(Sampling, AlmostNoTemperatureIsTheLikeliestToken) {
  Scores scores;
  Random random(1);
  EXPECT_EQ(sample_token(scores.fresh(), {.temperature = 1e-310}, {}, random), 0);
}

TEST(Sampling, ANucleusThatMostDrawsMissIsDrawnFromAllTheSame) {
  constexpr int64_t kTokens = 100'000;
  const auto flat = [] {
    at::Tensor log_p = at::full({kTokens}, -std::log(static_cast<double>(kTokens)));
    log_p[777] += 1e-3;
    return log_p;
  };
  const TokenScores scores({{0, kTokens, 0}}, [&](size_t) { return flat(); });
  Random random(1);
  EXPECT_EQ(sample_token(scores, {.temperature = 100, .top_p = 1e-6}, {}, random), 777);
}

}  // namespace
}  // namespace fmmformer
