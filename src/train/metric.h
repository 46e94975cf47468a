// SPDX-License-Identifier: Apache-2.0
// How good a model is, as a number that people compare. Without torch.
#pragma once

#include <cmath>
#include <string_view>

namespace fmmformer::train {

/// Sums over what counts, in double: adding and dividing them is exact enough for any number of
/// batches.
struct Score {
  double loss = 0;     // sum of -log p
  double correct = 0;  // right answers; not counted for a model without logits
  double count = 0;

  Score& operator+=(const Score& other) {
    loss += other.loss, correct += other.correct, count += other.count;
    return *this;
  }
  double mean_loss() const { return count > 0 ? loss / count : 0; }
  double accuracy() const { return count > 0 ? 100 * correct / count : 0; }
  double perplexity() const { return std::exp(mean_loss()); }
};

/// What is measured beside the loss, and which way is up.
struct Metric {
  std::string_view name;
  std::string_view unit;
  bool higher_is_better = true;
  double (Score::*of)() const = nullptr;

  bool is_better(double a, double b) const { return higher_is_better ? a > b : a < b; }
  double value(const Score& score) const { return (score.*of)(); }
  bool is_percentage() const { return unit == "%"; }
  /// A metric as records have it: a share rather than a percentage.
  double recorded(double shown) const { return is_percentage() ? shown / 100 : shown; }
};

inline constexpr Metric kAccuracy = {
    .name = "accuracy", .unit = "%", .higher_is_better = true, .of = &Score::accuracy};
inline constexpr Metric kPerplexity = {
    .name = "perplexity", .unit = "", .higher_is_better = false, .of = &Score::perplexity};

}  // namespace fmmformer::train
