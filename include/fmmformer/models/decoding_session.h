// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "fmmformer/models/language_model.h"

namespace fmmformer {

/// A language model and a text that grows: the mean time of a token and the memory stay the
/// same, however long the text has become.
///
/// The model has learned windows of W = max_length tokens, so a token is predicted from a window
/// too. Token n of the text (from 0) belongs to the window that begins at token
///
///   s(n) = 0                               n < W
///   s(n) = h floor((n - W) / h + 1)        n >= W, h = W - floor(W / 2)
///
/// and has there the position code of place n - s(n). When a window is full, the next one therefore
/// begins with its last half, which is read again: once every h tokens, so that the mean cost of a
/// token stays constant, and each is predicted from W / 2 to W tokens at codes that training knew.
/// docs/adr/0016 says why. A model without positions whose attention has no N x N matrix knows no
/// window: its text simply goes on.
///
/// What it predicts equals a full pass over tokens s(n) .. n, filled up to W with anything, read at
/// place n - s(n).
class DecodingSession {
 public:
  /// Throws c10::ValueError for a model that cannot go on token by token: attention that is not
  /// causal, or whose normaliser is the length.
  explicit DecodingSession(std::shared_ptr<const LanguageModel> model);

  /// Adds tokens to the text, at least one, and returns what may come after the last of them: valid
  /// until the session ends. Throws c10::ValueError for a token outside the vocabulary.
  TokenScores feed(std::span<const int64_t> tokens);

  int64_t tokens() const { return tokens_; }  // fed so far
  /// The last of them, at most W: of a windowed text those that the next token is predicted from.
  std::span<const int64_t> context() const { return context_; }
  /// State, and the bounds that draws were helped by: bounded, however long the text.
  int64_t memory_bytes() const {
    return memory_.bytes() + (cluster_bounds_ ? cluster_bounds_->memory_bytes() : 0);
  }

 private:
  /// Adds a token to the context; where that is full, the older half goes, and the memory with it.
  void add_to_context(int64_t token);
  /// What the memory does not have yet, all at once into an empty memory, else one by one.
  TokenScores read(std::span<const int64_t> tokens);
  TokenScores read_pass(std::span<const int64_t> tokens);

  std::shared_ptr<const LanguageModel> model_;
  c10::Device device_;
  int64_t window_;
  bool windowed_;
  DecodingMemory
      memory_;  // of a windowed text: the begin of the context, and all of it between feeds
  std::shared_ptr<ClusterBounds> cluster_bounds_;  // of the model's weights at the begin
  std::vector<int64_t> context_;
  int64_t tokens_ = 0;
};

}  // namespace fmmformer
