// SPDX-License-Identifier: Apache-2.0
// What a task hands to the trainer: examples in plain memory, so that tasks need no torch and a
// data thread can fill it while the model runs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace fmmformer {

/// `size` examples of `length` tokens each, padding included; all arrays are row-major. int64 is
/// what torch's embedding and losses take, so nothing is converted on the way to the device.
struct Batch {
  int64_t size = 0;
  int64_t length = 0;

  std::vector<int64_t> tokens;      // [size, length]
  std::vector<uint8_t> token_mask;  // [size, length], 1 = a real token; empty: all are

  // Pair tasks: the second document, of the same length.
  std::vector<int64_t> other_tokens;
  std::vector<uint8_t> other_token_mask;

  std::vector<int64_t> targets;      // [size]: classes; or [size, length]: the tokens to predict
  std::vector<uint8_t> target_mask;  // like targets, 1 = counts in loss and metric; empty: all do

  bool has_token_mask() const { return !token_mask.empty(); }
  bool is_pair() const { return !other_tokens.empty(); }
  bool predicts_tokens() const { return targets.size() != static_cast<size_t>(size); }
  /// How many targets count.
  int64_t counted() const {
    return target_mask.empty() ? static_cast<int64_t>(targets.size())
                               : std::count(target_mask.begin(), target_mask.end(), uint8_t{1});
  }
  /// How far the longest example reaches without the padding at its end, at least 1; of a pair its
  /// first document. Where no mask says what is padding and tokens are predicted, it is token 0,
  /// and nothing is predicted from it that counts.
  int64_t real_length() const {
    const bool told_by_targets = !has_token_mask() && predicts_tokens() && !target_mask.empty();
    if (!has_token_mask() && !told_by_targets) return length;
    int64_t longest = 1;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const bool real =
          told_by_targets ? target_mask[i] != 0 || tokens[i] != 0 : token_mask[i] != 0;
      if (real) longest = std::max(longest, static_cast<int64_t>(i) % length + 1);
    }
    return longest;
  }
  /// Tokens that a model reads, padding included.
  int64_t tokens_read() const { return size * length * (is_pair() ? 2 : 1); }
};

}  // namespace fmmformer
