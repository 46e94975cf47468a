// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <optional>

#include "tasks/corpus/token_file.h"
#include "tasks/corpus/vocabulary.h"
#include "tasks/task.h"

namespace fmmformer::tasks {

/// The next token of a text: WikiText-2, WikiText-103, or any other that `fmmformer data import
/// wikitext` has read. An example is a window of N tokens (`length`), its targets are those tokens
/// moved by one. With T tokens s[0 .. T - 1] in the text:
///
///   training   The text is cut into C columns (`columns`) of L = floor(T / C) tokens, the rest is
///              left out. Example p of the endless stream is of column c = p mod C, from its token
///              w N on, w = (p / C) mod W; a column has W = ceil((L - 1) / N) windows. So with
///              batches of C examples row c reads column c, and each batch goes on where the one
///              before ended; nothing is shuffled and every pass is the same, as in the published
///              code. Batches of any other size go through the same examples in the same order.
///   kStored    Window w of ceil((T - 1) / N) begins at token w N: no overlap, every target once.
///   kSliding   Window w of T - N begins at token w: the first counts whole, of each later one its
///              last target alone. Every target once, and from s[N] on each with the N tokens
///              before it as inputs; s[1] .. s[N - 1] have fewer. N times the work.
///
/// The last window of a column, or of the text, may lack targets. It is filled up with token 0 to
/// the shape of all others, so that a captured graph serves it too, and what was added does not
/// count. (The published code has a shorter window there: where positions count down from the
/// window's end, one step in a pass sees other position codes than there.)
class WikitextTask : public Task {
 public:
  explicit WikitextTask(const WikitextConfig& config) : config_(config) {}

  Batch batch(const BatchRequest& request) const override;
  /// Windows in stored order. Throws DataError when the files cannot be used: not there, damaged,
  /// of another vocabulary, or shorter than a window (and, of the train split, its columns).
  int64_t examples(Split split) const override;
  int64_t sliding_examples(Split split) const override;
  bool has(Split split) const override {
    return std::filesystem::exists(token_file_path(config_.data, split));
  }
  /// As the config says; where it says 0, as the files have it, which must be there then.
  int64_t vocabulary() const override;
  int64_t classes() const override { return 0; }
  int64_t length() const override { return config_.length; }
  std::string token_text(int64_t token) const override { return words().text(token); }

  /// What the tokens stand for. Throws DataError when the file cannot be used.
  const Vocabulary& words() const;
  const TokenFile& text(Split split) const;

 private:
  /// Tokens begin .. begin + targets - 1 of a text; the first `skipped` targets do not count.
  struct Window {
    int64_t begin = 0;
    int64_t targets = 0;
    int64_t skipped = 0;
  };
  Window training_window(int64_t example, int64_t tokens) const;
  Window stored_window(int64_t example, int64_t tokens) const;
  Window sliding_window(int64_t example, int64_t tokens) const;
  Window window_of(const BatchRequest& request, int64_t row, int64_t tokens) const;

  const WikitextConfig config_;
  mutable std::mutex opening_;
  mutable std::optional<const Vocabulary> words_;
  mutable std::array<std::unique_ptr<const TokenFile>, kSplits.size()> texts_;
};

}  // namespace fmmformer::tasks
