// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "fmmformer/core/fields.h"
#include "fmmformer/core/random.h"
#include "fmmformer/models/token_scores.h"

namespace fmmformer {

/// How a token is drawn. With p the model's probabilities, in this order:
///   repetition_penalty r   p of tokens that occurred lately becomes p^r
///   temperature t          p becomes p^(1/t); 0: the most likely token, always
///   top_k k                all but the k most likely go; 0: none do
///   top_p                  of what is left, the fewest most likely tokens stay whose share reaches
///   it
/// and what remains is drawn from in proportion. Of equally likely tokens the lower comes first.
struct SamplingOptions {
  double temperature = 1;
  int64_t top_k = 0;
  double top_p = 1;
  double repetition_penalty = 1;

  static void fields(auto& self, auto&& visit) {
    visit("temperature", self.temperature, Range{0, 100},
          "below 1: likelier tokens become likelier still; 0: always the most likely one");
    visit("top_k", self.top_k, Range{.low = 0}, "draw from this many likeliest tokens; 0: all");
    visit("top_p", self.top_p, Range{0, 1},
          "draw from the fewest likeliest tokens whose probabilities reach this share");
    visit("repetition_penalty", self.repetition_penalty, Range{1, 100},
          "probabilities of tokens in the context are raised to this power");
  }
};

/// Draws the next token. `recent`: what the repetition penalty is for. Exact, though only those
/// parts of the scores are computed that matter: one whose whole mass is too small to hold a token
/// of the top k is left alone, any other is computed when a draw falls on the bound of its mass
/// (the part by which that is too high is drawn again), or when bounds leave it open whether a
/// token is among the top p; where there are bounds of a part's tokens, they are asked first.
/// Throws c10::ValueError for options outside their ranges, c10::Error for scores that are not
/// finite.
int64_t sample_token(const TokenScores& scores, const SamplingOptions& options,
                     std::span<const int64_t> recent, Random& random);

}  // namespace fmmformer
