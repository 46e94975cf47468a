// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/models/sampling.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace fmmformer {
namespace {

struct RangeCheck {
  void operator()(std::string_view name, const auto& value, Range range, std::string_view) const {
    TORCH_CHECK_VALUE(range.contains(static_cast<double>(value)), "sampling: ", name, " is ", value,
                      "; allowed is ", range.low, " to ", range.high);
  }
};

struct Candidate {
  double score = 0;  // log of what its probability has become; the sum over all need not be 1
  int64_t token = 0;
};
bool is_likelier(const Candidate& a, const Candidate& b) {
  return a.score != b.score ? a.score > b.score : a.token < b.token;
}

/// Scores after penalty and temperature: of the parts that are computed the tokens' own, of the
/// others bounds.
class Weighing {
 public:
  Weighing(const TokenScores& scores, const SamplingOptions& options,
           std::span<const int64_t> recent)
      : scores_(scores),
        exponent_(1 / options.temperature),
        penalty_(options.repetition_penalty),
        parts_(scores.parts().size()) {
    if (penalty_ != 1) {
      recent_.assign(recent.begin(), recent.end());
      std::ranges::sort(recent_);
      recent_.erase(std::ranges::unique(recent_).begin(), recent_.end());
    }
    for (size_t part = 0; part < parts(); ++part) {
      parts_[part].highest = exponent_ * scores.parts()[part].log_mass;
    }
    compute(0);
  }

  size_t parts() const { return parts_.size(); }
  bool is_computed(size_t part) const { return !parts_[part].scores.empty(); }
  void compute(size_t part) {
    const int64_t begin = scores_.parts()[part].begin;
    const auto log_p = scores_.log_p(part);
    std::vector<double>& scores = parts_[part].scores;
    scores.resize(log_p.size());
    std::ranges::transform(log_p, scores.begin(), [&](float value) { return exponent_ * value; });
    const auto first = std::ranges::lower_bound(recent_, begin),
               last = std::ranges::lower_bound(recent_, begin + std::ssize(scores));
    for (auto token = first; token != last; ++token) {
      scores[static_cast<size_t>(*token - begin)] *= penalty_;
    }
    parts_[part].highest = *std::ranges::max_element(scores);
    update_weights();
  }

  std::span<const double> scores(size_t part) const { return parts_[part].scores; }
  Candidate candidate(size_t part, size_t i) const {
    return {parts_[part].scores[i], scores_.parts()[part].begin + static_cast<int64_t>(i)};
  }
  /// What no token of a part exceeds: each has p <= the part's mass, and a penalty lowers it only.
  /// Of a part that is computed, its best score.
  double highest(size_t part) const { return parts_[part].highest; }

  /// In proportion to the token's probability. Scores are taken relative to the highest that is
  /// still possible, lest all weights vanish at a low temperature.
  double weight(double score) const { return std::exp(score - reference_); }
  double reference() const { return reference_; }
  std::span<const double> weights(size_t part) const { return parts_[part].weights; }
  /// What the sum of a part's weights does not exceed; where the part is computed, that sum.
  double mass(size_t part) const { return parts_[part].mass; }

  /// The part among those not computed whose tokens may score highest; parts(): there is none.
  size_t most_promising() const {
    size_t best = parts();
    for (size_t part = 0; part < parts(); ++part) {
      if (!is_computed(part) && (best == parts() || highest(part) > highest(best))) best = part;
    }
    return best;
  }

 private:
  struct Part {
    std::vector<double> scores, weights;  // empty: not computed
    double highest = 0, mass = 0;
  };

  void update_weights() {
    double reference = parts_[0].highest;
    for (const Part& part : parts_) reference = std::max(reference, part.highest);
    const bool is_other = reference != std::exchange(reference_, reference);
    for (size_t i = 0; i < parts(); ++i) {
      Part& part = parts_[i];
      if (!is_computed(i)) {
        part.mass = weight(part.highest) * spread(scores_.parts()[i].size);
      } else if (is_other || part.weights.empty()) {
        part.weights.resize(part.scores.size());
        std::ranges::transform(part.scores, part.weights.begin(),
                               [&](double score) { return weight(score); });
        part.mass = std::accumulate(part.weights.begin(), part.weights.end(), 0.0);
      }
      TORCH_CHECK(std::isfinite(part.mass),
                  "sampling: the model's log-probabilities are not finite, so nothing can be "
                  "drawn; its weights may have diverged in training: use an earlier checkpoint");
    }
  }

  /// sum (m s_i)^a over n shares s_i that add up to 1 is at most m^a, or m^a n^(1-a) for a < 1.
  double spread(int64_t tokens) const {
    return std::pow(static_cast<double>(tokens), std::max(1 - exponent_, 0.0));
  }

  const TokenScores& scores_;
  double exponent_, penalty_;
  std::vector<int64_t> recent_;  // sorted, each once; none without a penalty
  std::vector<Part> parts_;
  double reference_ = std::numeric_limits<double>::quiet_NaN();
};

/// The k likeliest, likeliest first; the parts that may hold one of them are computed.
std::vector<Candidate> likeliest(Weighing& weighing, size_t k) {
  while (true) {
    std::vector<Candidate> best;  // a heap, the least likely in front
    for (size_t part = 0; part < weighing.parts(); ++part) {
      for (size_t i = 0; i < weighing.scores(part).size(); ++i) {
        // Tokens come in rising order: an equal one is too late.
        if (best.size() == k && weighing.scores(part)[i] <= best.front().score) continue;
        if (best.size() == k) std::ranges::pop_heap(best, is_likelier), best.pop_back();
        best.push_back(weighing.candidate(part, i));
        std::ranges::push_heap(best, is_likelier);
      }
    }
    const size_t next = weighing.most_promising();
    const bool is_settled = next == weighing.parts() ||
                            (best.size() == k && weighing.highest(next) <= best.front().score);
    if (is_settled) {
      std::ranges::sort(best, is_likelier);
      return best;
    }
    weighing.compute(next);
  }
}

double mass_of(std::span<const Candidate> candidates, const Weighing& weighing) {
  double sum = 0;
  for (const Candidate& candidate : candidates) sum += weighing.weight(candidate.score);
  return sum;
}

/// From the fewest first of `sorted` whose share of them all reaches `share`, at least one.
int64_t draw_from(std::span<const Candidate> sorted, double share, const Weighing& weighing,
                  Random& random) {
  const double wanted = share * mass_of(sorted, weighing);
  size_t kept = 0;
  double mass = 0;
  while (kept < sorted.size() && (kept == 0 || mass < wanted)) {
    mass += weighing.weight(sorted[kept++].score);
  }
  double place = random.uniform() * mass;
  for (const Candidate& candidate : sorted.first(kept)) {
    place -= weighing.weight(candidate.score);
    if (place < 0) return candidate.token;
  }
  return sorted[kept - 1].token;  // rounding
}

/// A token in proportion to its weight, or nothing: a part is drawn by the bound on its mass and,
/// where its own mass turns out to be less, the difference is no token.
std::optional<Candidate> drawn_from_all(Weighing& weighing, Random& random) {
  double total = 0;
  for (size_t part = 0; part < weighing.parts(); ++part) total += weighing.mass(part);
  double place = random.uniform() * total;
  size_t part = 0;
  while (part + 1 < weighing.parts() && place >= weighing.mass(part)) {
    place -= weighing.mass(part++);
  }
  if (!weighing.is_computed(part)) {
    const double before = weighing.reference();
    weighing.compute(part);
    place *= std::exp(before - weighing.reference());
  }
  const auto weights = weighing.weights(part);
  for (size_t i = 0; i < weights.size(); ++i) {
    place -= weights[i];
    if (place < 0) return weighing.candidate(part, i);
  }
  return std::nullopt;
}

/// Whether the tokens that are likelier than this one have less than `share` of all together.
/// Computes parts only as long as their bounds leave it open.
bool is_in_nucleus(Weighing& weighing, const Candidate& candidate, double share) {
  while (true) {
    double above = 0, above_at_most = 0, total = 0, total_at_most = 0;
    for (size_t part = 0; part < weighing.parts(); ++part) {
      total_at_most += weighing.mass(part);
      if (!weighing.is_computed(part)) {
        if (weighing.highest(part) > candidate.score) above_at_most += weighing.mass(part);
        continue;
      }
      total += weighing.mass(part);
      for (size_t i = 0; i < weighing.scores(part).size(); ++i) {
        if (is_likelier(weighing.candidate(part, i), candidate)) above += weighing.weights(part)[i];
      }
    }
    above_at_most += above;
    if (above_at_most == 0 || above_at_most < share * total) return true;
    if (above >= share * total_at_most) return false;
    weighing.compute(weighing.most_promising());
  }
}

/// A nucleus that so many draws miss is small; then one sort of all tokens is cheaper.
constexpr int kMostDraws = 32;

}  // namespace

int64_t sample_token(const TokenScores& scores, const SamplingOptions& options,
                     std::span<const int64_t> recent, Random& random) {
  SamplingOptions used = options;
  SamplingOptions::fields(used, RangeCheck{});
  if (used.top_p == 0) used.top_k = 1;  // the fewest tokens are one
  // So cold that exponents overflow: only the likeliest token has a chance.
  constexpr double kFrozen = 1e-6;
  if (used.temperature < kFrozen) used.temperature = 1, used.top_k = 1;
  Weighing weighing(scores, used, recent);
  if (used.top_k > 0) {
    const auto best = likeliest(weighing, static_cast<size_t>(used.top_k));
    return draw_from(best, used.top_p, weighing, random);
  }
  for (int draws = 0; draws < kMostDraws; ++draws) {
    const auto drawn = drawn_from_all(weighing, random);
    if (drawn && (used.top_p == 1 || is_in_nucleus(weighing, *drawn, used.top_p))) {
      return drawn->token;
    }
  }
  const auto all = likeliest(weighing, static_cast<size_t>(scores.tokens()));
  return draw_from(all, used.top_p, weighing, random);
}

}  // namespace fmmformer
