// SPDX-License-Identifier: Apache-2.0
// A model's scores as sampling options change them, known as far as a draw needs them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "fmmformer/models/sampling.h"
#include "fmmformer/models/token_scores.h"

namespace fmmformer {

/// What is known of a number.
struct Interval {
  double low = 0, high = 0;
  bool is_exact() const { return low == high; }
};

/// A token by its part and its place in it.
struct Candidate {
  Interval score;  // log of what its probability has become; the sum over all need not be 1
  int64_t token = 0;
  size_t part = 0, place = 0;
};

/// Scores after penalty and temperature. Of a part the mass is known at first, then perhaps bounds
/// of its tokens, ever sharper, and in the end its tokens' own scores; refine() goes one step
/// on. Part 0, which has the likeliest words, is computed from the begin.
class Weighing {
 public:
  Weighing(const TokenScores& scores, const SamplingOptions& options,
           std::span<const int64_t> recent);

  size_t parts() const { return parts_.size(); }
  size_t size(size_t part) const { return static_cast<size_t>(scores_.parts()[part].size); }
  bool knows_tokens(size_t part) const { return parts_[part].state != State::kWhole; }
  /// How often it has been refined.
  int steps(size_t part) const { return static_cast<int>(parts_[part].state); }
  bool is_computed(size_t part) const { return parts_[part].state == State::kComputed; }
  void refine(size_t part);

  /// What no token of a part exceeds: each has p <= the part's mass, and a penalty lowers it only.
  double highest(size_t part) const { return parts_[part].highest; }
  int64_t first_token(size_t part) const { return scores_.parts()[part].begin; }

  /// Of a token in a part that knows its tokens.
  Candidate candidate(size_t part, size_t place) const;
  /// The same once more is known.
  void update(Candidate& candidate) const {
    candidate = this->candidate(candidate.part, candidate.place);
  }
  /// The k likeliest of a part that knows its tokens, by what they have at least, in no order.
  const std::vector<Candidate>& likeliest(size_t part, size_t k);
  /// Those that may have `least` or more.
  void append_from(size_t part, double least, std::vector<Candidate>& out) const;

  /// log of the sum of exp(score) over a part.
  Interval log_mass(size_t part);
  /// log_mass of those alone that are likelier than the candidate.
  Interval log_mass_above(size_t part, const Candidate& candidate);

  /// A token of the part, with the probability that it has among them.
  Candidate drawn_from(size_t part, Random& random);

 private:
  enum class State { kWhole, kRough, kSharp, kSharpest, kComputed };
  struct Part {
    State state = State::kWhole;
    std::span<const float> low, high;  // kRough to kSharpest: the model's own, or these
    std::vector<float> weighed_low, weighed_high;
    std::vector<double> scores;   // kComputed
    std::vector<double> weights;  // exp(score - highest), once somebody asked for them
    std::vector<Candidate> likeliest;
    double highest = 0;
    std::optional<Interval> log_mass;
  };

  bool bound(size_t part, TokenScores::Sharpness sharpness);  // false: there are no bounds
  void compute(size_t part);
  bool is_penalised(size_t part) const;
  template <typename T>
  void weigh(size_t part, std::vector<T>& scores) const;
  Interval mass_of_whole(size_t part) const;
  const std::vector<double>& weights(size_t part);
  std::optional<Candidate> drawn_by_bounds(size_t part, Random& random);

  const TokenScores& scores_;
  double exponent_, penalty_;
  std::vector<int64_t> recent_;  // sorted, each once; none without a penalty
  std::vector<Part> parts_;
};

}  // namespace fmmformer
