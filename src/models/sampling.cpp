// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/models/sampling.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "models/weighing.h"

namespace fmmformer {
namespace {

struct RangeCheck {
  void operator()(std::string_view name, const auto& value, Range range, std::string_view) const {
    TORCH_CHECK_VALUE(range.contains(static_cast<double>(value)), "sampling: ", name, " is ", value,
                      "; allowed is ", range.low, " to ", range.high);
  }
};

bool is_likelier(const Candidate& a, const Candidate& b) {  // where both are exact
  return a.score.low != b.score.low ? a.score.low > b.score.low : a.token < b.token;
}

/// The part to refine next where it is open whether the first k of candidates are the k likeliest
/// of all; none: they are. `sorted`: by what each has at least; no other token has as much as the
/// k-th of them.
std::optional<size_t> part_in_doubt(std::span<const Candidate> sorted, size_t k,
                                    const Weighing& weighing) {
  if (sorted.size() <= k) return std::nullopt;
  const auto is_open = [](const Candidate& candidate) { return !candidate.score.is_exact(); };
  const auto others = sorted.subspan(k);
  if (std::ranges::any_of(others, is_open)) {
    // The roughest bounds first, inside or outside: the cheapest to better, and often it does.
    const auto steps = [&](const Candidate& candidate) {
      return is_open(candidate) ? weighing.steps(candidate.part) : std::numeric_limits<int>::max();
    };
    return std::ranges::min_element(sorted, {}, steps)->part;
  }
  const double least = sorted[k - 1].score.low;  // the others have just this: ties
  for (const Candidate& one : sorted.first(k)) {
    if (one.score.low == least && !one.score.is_exact()) return one.part;
  }
  return std::nullopt;
}

/// The k likeliest. Parts that may hold one of them are refined as far as it takes to know.
std::vector<Candidate> likeliest(Weighing& weighing, size_t k) {
  while (true) {
    std::vector<double> known;
    size_t open = weighing.parts();  // the part whose tokens are not known and may score highest
    for (size_t part = 0; part < weighing.parts(); ++part) {
      if (weighing.knows_tokens(part)) {
        for (const Candidate& one : weighing.likeliest(part, k)) known.push_back(one.score.low);
      } else if (open == weighing.parts() || weighing.highest(part) > weighing.highest(open)) {
        open = part;
      }
    }
    double least = -std::numeric_limits<double>::infinity();
    if (known.size() >= k) {
      std::ranges::nth_element(known, known.begin() + static_cast<int64_t>(k) - 1,
                               std::ranges::greater());
      least = known[k - 1];
    }
    if (open < weighing.parts() && weighing.highest(open) >= least) {
      weighing.refine(open);
      continue;
    }
    std::vector<Candidate> candidates;
    for (size_t part = 0; part < weighing.parts(); ++part) {
      if (weighing.highest(part) >= least) weighing.append_from(part, least, candidates);
    }
    std::ranges::sort(candidates, is_likelier);
    if (const auto part = part_in_doubt(candidates, k, weighing)) {
      weighing.refine(*part);
      continue;
    }
    candidates.resize(std::min(k, candidates.size()));
    return candidates;
  }
}

void make_exact(std::span<Candidate> candidates, Weighing& weighing) {
  for (Candidate& candidate : candidates) {
    while (!weighing.is_computed(candidate.part)) weighing.refine(candidate.part);
    weighing.update(candidate);
  }
}

/// One step for every part that has some of them.
void refine_all(std::span<Candidate> candidates, Weighing& weighing) {
  std::vector<bool> is_refined(weighing.parts(), false);
  for (Candidate& candidate : candidates) {
    if (!is_refined[candidate.part]) weighing.refine(candidate.part);
    is_refined[candidate.part] = true;
    weighing.update(candidate);
  }
}

double highest_score(std::span<const Candidate> candidates) {
  double highest = candidates[0].score.high;
  for (const Candidate& candidate : candidates) highest = std::max(highest, candidate.score.high);
  return highest;
}

/// The fewest likeliest whose share of them all reaches `share`, at least one.
void keep_nucleus(std::vector<Candidate>& candidates, double share, Weighing& weighing) {
  make_exact(candidates, weighing);
  std::ranges::sort(candidates, is_likelier);
  const double reference = highest_score(candidates);
  const auto weight = [&](const Candidate& one) { return std::exp(one.score.low - reference); };
  double all = 0, mass = 0;
  for (const Candidate& candidate : candidates) all += weight(candidate);
  size_t kept = 0;
  while (kept < candidates.size() && (kept == 0 || mass < share * all)) {
    mass += weight(candidates[kept++]);
  }
  candidates.resize(kept);
}

/// The first of them at which the weights up to it exceed this share of them all; nothing if
/// scores are not known well enough to say.
std::optional<int64_t> token_at(std::span<const Candidate> candidates, double place) {
  const double reference = highest_score(candidates);
  Interval all;
  for (const Candidate& candidate : candidates) {
    all.low += std::exp(candidate.score.low - reference);
    all.high += std::exp(candidate.score.high - reference);
  }
  Interval sum;
  for (const Candidate& candidate : candidates) {
    const double before_at_most = sum.high;
    sum.low += std::exp(candidate.score.low - reference);
    sum.high += std::exp(candidate.score.high - reference);
    if (place * all.high >= sum.low) continue;  // perhaps further on
    if (place * all.low < before_at_most) return std::nullopt;
    return candidate.token;
  }
  const bool is_exact = std::ranges::all_of(
      candidates, [](const Candidate& candidate) { return candidate.score.is_exact(); });
  if (is_exact) return candidates.back().token;  // rounding
  return std::nullopt;
}

/// One of the k likeliest, and of those one of the fewest whose share reaches top_p.
int64_t drawn_from_likeliest(Weighing& weighing, size_t k, double top_p, Random& random) {
  auto candidates = likeliest(weighing, k);
  if (candidates.size() > 1 && top_p < 1) keep_nucleus(candidates, top_p, weighing);
  if (candidates.size() == 1) return candidates[0].token;
  std::ranges::sort(candidates, {}, &Candidate::token);
  const double place = random.uniform();
  while (true) {
    if (const auto token = token_at(candidates, place)) return *token;
    refine_all(candidates, weighing);
  }
}

double highest_mass(Weighing& weighing) {
  double highest = weighing.log_mass(0).high;
  for (size_t part = 1; part < weighing.parts(); ++part) {
    highest = std::max(highest, weighing.log_mass(part).high);
  }
  return highest;
}

/// A token in proportion to its weight, or nothing: a part is drawn by the bound on its mass and,
/// where its own mass turns out to be less, the difference is no token.
std::optional<Candidate> drawn_from_all(Weighing& weighing, Random& random) {
  const double reference = highest_mass(weighing);
  const auto mass_at_most = [&](size_t part) {
    return std::exp(weighing.log_mass(part).high - reference);
  };
  double total = 0;
  for (size_t part = 0; part < weighing.parts(); ++part) total += mass_at_most(part);
  double place = random.uniform() * total;
  size_t part = 0;
  while (part + 1 < weighing.parts() && place >= mass_at_most(part)) place -= mass_at_most(part++);
  while (place >= std::exp(weighing.log_mass(part).low - reference)) {
    if (weighing.is_computed(part) || place >= mass_at_most(part)) return std::nullopt;
    weighing.refine(part);
  }
  return weighing.drawn_from(part, random);
}

/// Whether the tokens that are likelier than this one have less than `share` of all together.
/// Parts are refined only as long as their bounds leave it open.
bool is_in_nucleus(Weighing& weighing, Candidate candidate, double share) {
  while (true) {
    const double reference = highest_mass(weighing);
    const auto masses = [&](const Interval& logs) {
      return Interval{std::exp(logs.low - reference), std::exp(logs.high - reference)};
    };
    Interval above, total;
    size_t vaguest = weighing.parts();
    double most_open = -1;
    for (size_t part = 0; part < weighing.parts(); ++part) {
      const Interval own = masses(weighing.log_mass(part));
      const Interval own_above = masses(weighing.log_mass_above(part, candidate));
      total.low += own.low, total.high += own.high;
      above.low += own_above.low, above.high += own_above.high;
      const double open = own_above.high - own_above.low + share * (own.high - own.low);
      if (!weighing.is_computed(part) && open > most_open) vaguest = part, most_open = open;
    }
    if (above.high == 0 || above.high < share * total.low) return true;
    if (above.low >= share * total.high || vaguest == weighing.parts()) return false;
    weighing.refine(vaguest);
    weighing.update(candidate);
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
    return drawn_from_likeliest(weighing, static_cast<size_t>(used.top_k), used.top_p, random);
  }
  for (int draws = 0; draws < kMostDraws; ++draws) {
    const auto drawn = drawn_from_all(weighing, random);
    if (drawn && (used.top_p == 1 || is_in_nucleus(weighing, *drawn, used.top_p))) {
      return drawn->token;
    }
  }
  return drawn_from_likeliest(weighing, static_cast<size_t>(scores.tokens()), used.top_p, random);
}

}  // namespace fmmformer
