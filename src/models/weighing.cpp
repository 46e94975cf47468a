// SPDX-License-Identifier: Apache-2.0
#include "models/weighing.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "nn/cpu/exp_sum.h"

namespace fmmformer {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// No score, nor a mass, that a model can mean.
void check(bool is_number) {
  TORCH_CHECK(is_number,
              "sampling: the model's log-probabilities are not finite, so nothing can be drawn; "
              "its weights may have diverged in training: use an earlier checkpoint");
}

/// Calls use(i) for all scores but those of blocks that have none as high as least() says then.
template <typename T, typename Least, typename Use>
void for_high(std::span<const T> scores, const Least& least, const Use& use) {
  constexpr size_t kBlock = 256;
  for (size_t begin = 0; begin < scores.size(); begin += kBlock) {
    const size_t end = std::min(begin + kBlock, scores.size());
    if constexpr (std::is_same_v<T, float>) {
      if (cpu::highest(scores.subspan(begin, end - begin)) < least()) continue;
    }
    for (size_t i = begin; i < end; ++i) use(i);
  }
}

/// The largest float that is no larger.
float rounded_down(double value) {
  const auto nearest = static_cast<float>(value);
  return nearest <= value ? nearest : std::nextafter(nearest, -HUGE_VALF);
}
/// The smallest float that is larger.
float next_above(double value) { return std::nextafter(rounded_down(value), HUGE_VALF); }

}  // namespace

Weighing::Weighing(const TokenScores& scores, const SamplingOptions& options,
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
    check(scores.parts()[part].log_mass < kInfinity);
    parts_[part].highest = exponent_ * scores.parts()[part].log_mass;
  }
  compute(0);
}

void Weighing::refine(size_t part) {
  using enum TokenScores::Sharpness;
  const State state = parts_[part].state;
  if (state == State::kWhole && bound(part, kRough)) return;
  if (state == State::kRough && bound(part, kSharp)) return;
  if (state == State::kSharp && bound(part, kSharpest)) return;
  if (state != State::kComputed) compute(part);
}

/// Whether the part has a penalised token.
bool Weighing::is_penalised(size_t part) const {
  const auto first = std::ranges::lower_bound(recent_, first_token(part));
  return first != recent_.end() && *first < first_token(part) + static_cast<int64_t>(size(part));
}

/// log p to scores.
template <typename T>
void Weighing::weigh(size_t part, std::vector<T>& scores) const {
  const auto exponent = static_cast<T>(exponent_), penalty = static_cast<T>(penalty_);
  if (exponent != 1) {
    for (T& score : scores) score *= exponent;
  }
  const int64_t begin = first_token(part);
  const auto first = std::ranges::lower_bound(recent_, begin),
             last = std::ranges::lower_bound(recent_, begin + std::ssize(scores));
  for (auto token = first; token != last; ++token) {
    scores[static_cast<size_t>(*token - begin)] *= penalty;
  }
}

bool Weighing::bound(size_t part, TokenScores::Sharpness sharpness) {
  const TokenScores::Bounds& bounds = scores_.bounds(part, sharpness);
  if (bounds.high.empty()) return false;
  Part bounded;
  bounded.state = static_cast<State>(static_cast<int>(State::kRough) + static_cast<int>(sharpness));
  bounded.low = bounds.low, bounded.high = bounds.high;
  if (exponent_ != 1 || is_penalised(part)) {
    bounded.weighed_low = bounds.low, bounded.weighed_high = bounds.high;
    weigh(part, bounded.weighed_low), weigh(part, bounded.weighed_high);
    bounded.low = bounded.weighed_low, bounded.high = bounded.weighed_high;
  }
  bounded.highest = cpu::highest(bounded.high);
  parts_[part] = std::move(bounded);
  return true;
}

void Weighing::compute(size_t part) {
  const auto log_p = scores_.log_p(part);
  check(std::ranges::all_of(log_p, [](float value) { return value < HUGE_VALF; }));
  Part computed{.state = State::kComputed};
  computed.scores.assign(log_p.begin(), log_p.end());
  weigh(part, computed.scores);
  computed.highest = *std::ranges::max_element(computed.scores);
  parts_[part] = std::move(computed);
}

Candidate Weighing::candidate(size_t part, size_t place) const {
  const Part& known = parts_[part];
  const int64_t token = first_token(part) + static_cast<int64_t>(place);
  if (is_computed(part)) return {{known.scores[place], known.scores[place]}, token, part, place};
  return {{known.low[place], known.high[place]}, token, part, place};
}

const std::vector<Candidate>& Weighing::likeliest(size_t part, size_t k) {
  std::vector<Candidate>& best = parts_[part].likeliest;
  if (!best.empty()) return best;
  const auto has_more = [](const Candidate& a, const Candidate& b) {
    return a.score.low > b.score.low;
  };
  const auto collect = [&](const auto& scores) {  // a heap, the least in front
    for_high(
        scores, [&] { return best.size() == k ? best.front().score.low : -kInfinity; },
        [&](size_t i) {
          if (best.size() == k && scores[i] <= best.front().score.low) return;
          if (best.size() == k) std::ranges::pop_heap(best, has_more), best.pop_back();
          best.push_back(candidate(part, i));
          std::ranges::push_heap(best, has_more);
        });
  };
  if (is_computed(part)) {
    collect(std::span<const double>(parts_[part].scores));
  } else {
    collect(parts_[part].low);
  }
  return best;
}

void Weighing::append_from(size_t part, double least, std::vector<Candidate>& out) const {
  const auto append = [&](const auto& scores) {
    for_high(
        scores, [&] { return least; },
        [&](size_t i) {
          if (scores[i] >= least) out.push_back(candidate(part, i));
        });
  };
  if (is_computed(part)) {
    append(std::span<const double>(parts_[part].scores));
  } else {
    append(parts_[part].high);
  }
}

/// With shares s_i of n tokens that add up to 1, sum (m s_i)^a is m^a if one has all and
/// m^a n^(1-a) if all have the same; anything else lies between.
Interval Weighing::mass_of_whole(size_t part) const {
  const double one = exponent_ * scores_.parts()[part].log_mass;
  const double all = one + (1 - exponent_) * std::log(static_cast<double>(size(part)));
  return {is_penalised(part) ? -kInfinity : std::min(one, all), std::max(one, all)};
}

const std::vector<double>& Weighing::weights(size_t part) {
  Part& known = parts_[part];
  if (known.weights.empty()) {
    known.weights.resize(known.scores.size());
    const double sum = cpu::exp_all(known.scores, known.highest, known.weights.data());
    const double log_sum = known.highest == -kInfinity ? -kInfinity : known.highest + std::log(sum);
    known.log_mass = Interval{log_sum, log_sum};
  }
  return known.weights;
}

Interval Weighing::log_mass(size_t part) {
  Part& known = parts_[part];
  if (known.log_mass) return *known.log_mass;
  if (is_computed(part)) {
    weights(part);
  } else {
    Interval mass = mass_of_whole(part);
    if (knows_tokens(part)) {
      mass.low = std::max(mass.low, cpu::log_sum_exp(known.low));
      mass.high = std::max(mass.low, std::min(mass.high, cpu::log_sum_exp(known.high)));
    }
    known.log_mass = mass;
  }
  return *known.log_mass;
}

Interval Weighing::log_mass_above(size_t part, const Candidate& than) {
  const Part& known = parts_[part];
  if (!knows_tokens(part)) {
    return {-kInfinity, highest(part) >= than.score.low ? log_mass(part).high : -kInfinity};
  }
  Interval sum;
  if (is_computed(part)) {
    const auto& weight = weights(part);
    const int64_t first = first_token(part);
    for (size_t i = 0; i < weight.size(); ++i) {
      const double score = known.scores[i];
      const bool wins_tie = first + static_cast<int64_t>(i) < than.token;
      const bool exact = than.score.is_exact();
      if (score > than.score.high || (exact && score == than.score.high && wins_tie))
        sum.low += weight[i];
      if (score > than.score.low || (score == than.score.low && (wins_tie || !exact)))
        sum.high += weight[i];
    }
  } else {
    const auto reference = static_cast<float>(known.highest);
    sum.low = cpu::exp_sum(known.low, reference, next_above(than.score.high));
    sum.high = cpu::exp_sum(known.high, reference, rounded_down(than.score.low));
    if (than.part == part) sum.high -= std::exp(than.score.high - known.highest);
    sum.high = std::max(sum.high, sum.low);
  }
  return {known.highest + std::log(sum.low), known.highest + std::log(sum.high)};
}

std::optional<Candidate> Weighing::drawn_by_bounds(size_t part, Random& random) {
  const auto& high = parts_[part].high;
  const double reference = parts_[part].highest;
  std::vector<float> most(high.size());
  double place = random.uniform() * cpu::exp_all(high, static_cast<float>(reference), most.data());
  size_t i = 0;
  while (i < most.size() && place >= most[i]) place -= most[i++];
  if (i == most.size()) return std::nullopt;  // rounding
  // Kept as often as its weight is what it may be at most; that is known only if it matters.
  Candidate drawn = candidate(part, i);
  if (place < std::exp(drawn.score.low - reference)) return drawn;
  compute(part);
  update(drawn);
  if (place < std::exp(drawn.score.low - reference)) return drawn;
  return std::nullopt;
}

Candidate Weighing::drawn_from(size_t part, Random& random) {
  // Rough bounds would mostly leave it open whether a token that was drawn by them is kept.
  while (parts_[part].state < State::kSharp) refine(part);
  while (!is_computed(part)) {
    if (const auto drawn = drawn_by_bounds(part, random)) return *drawn;
  }
  const auto& weight = weights(part);
  double sum = 0;
  for (const double one : weight) sum += one;
  double place = random.uniform() * sum;
  size_t drawn = 0;
  for (size_t i = 0; i < weight.size(); ++i) {
    if (weight[i] > 0) drawn = i;  // the last of them, should rounding leave a rest
    place -= weight[i];
    if (place < 0) break;
  }
  return candidate(part, drawn);
}

}  // namespace fmmformer
