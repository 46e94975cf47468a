// SPDX-License-Identifier: Apache-2.0
#include "tasks/wikitext.h"

#include <algorithm>

namespace fmmformer::tasks {
namespace {

int64_t rounded_up_quotient(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

const Vocabulary& WikitextTask::words() const {
  const std::lock_guard lock(opening_);
  if (words_) return *words_;
  Vocabulary words = Vocabulary::read(config_.data);
  if (config_.vocabulary != 0 && config_.vocabulary != words.size()) {
    throw DataError("task.wikitext.vocabulary is " + std::to_string(config_.vocabulary) + ", '" +
                    vocabulary_path(config_.data).string() + "' has " +
                    std::to_string(words.size()) +
                    "; name the folder that was meant in task.wikitext.data, or set the vocabulary "
                    "to 0 to have it follow from the data");
  }
  return words_.emplace(std::move(words));
}

const TokenFile& WikitextTask::text(Split split) const {
  const Vocabulary& words = this->words();
  const std::lock_guard lock(opening_);
  auto& opened = texts_[static_cast<size_t>(split)];
  if (opened) return *opened;
  auto text = std::make_unique<const TokenFile>(config_.data, split, words);
  const auto too_short = [&](const std::string& what, int64_t tokens, const std::string& way_out) {
    throw DataError("'" + text->path().string() + "' is too short: " + what + " " +
                    std::to_string(tokens) + " tokens, and a window of " +
                    std::to_string(config_.length) + " with the token that comes next needs " +
                    std::to_string(config_.length + 1) + "; import a longer text, or set " +
                    way_out);
  };
  if (text->tokens() <= config_.length) {
    too_short("it has", text->tokens(), "task.wikitext.length lower");
  }
  if (const int64_t column = text->tokens() / config_.columns;
      split == Split::kTrain && column <= config_.length) {
    too_short("each of its " + std::to_string(config_.columns) + " columns has", column,
              "task.wikitext.columns or length lower");
  }
  opened = std::move(text);
  return *opened;
}

int64_t WikitextTask::vocabulary() const {
  return config_.vocabulary != 0 ? config_.vocabulary : words().size();
}

int64_t WikitextTask::examples(Split split) const {
  return rounded_up_quotient(text(split).tokens() - 1, config_.length);
}

int64_t WikitextTask::sliding_examples(Split split) const {
  return text(split).tokens() - config_.length;
}

WikitextTask::Window WikitextTask::training_window(int64_t example, int64_t tokens) const {
  const int64_t column_tokens = tokens / config_.columns;
  const int64_t windows = rounded_up_quotient(column_tokens - 1, config_.length);
  const int64_t column = example % config_.columns;
  const int64_t offset = example / config_.columns % windows * config_.length;
  return {.begin = column * column_tokens + offset,
          .targets = std::min(config_.length, column_tokens - 1 - offset)};
}

WikitextTask::Window WikitextTask::stored_window(int64_t example, int64_t tokens) const {
  const int64_t windows = rounded_up_quotient(tokens - 1, config_.length);
  const int64_t begin = std::min(example, windows - 1) * config_.length;
  return {.begin = begin,
          .targets = std::min(config_.length, tokens - 1 - begin),
          .skipped = example < windows ? 0 : config_.length};
}

WikitextTask::Window WikitextTask::sliding_window(int64_t example, int64_t tokens) const {
  const int64_t windows = tokens - config_.length;
  const int64_t skipped = example == 0        ? 0
                          : example < windows ? config_.length - 1
                                              : config_.length;
  return {.begin = std::min(example, windows - 1), .targets = config_.length, .skipped = skipped};
}

WikitextTask::Window WikitextTask::window_of(const BatchRequest& request, int64_t row,
                                             int64_t tokens) const {
  const int64_t example = request.index * request.size + row;
  switch (request.order) {
    case Order::kStored:
      return stored_window(example, tokens);
    case Order::kSliding:
      return sliding_window(example, tokens);
    case Order::kShuffled:
      break;
  }
  return training_window(example, tokens);
}

Batch WikitextTask::batch(const BatchRequest& request) const {
  const TokenFile& text = this->text(request.split);
  const auto length = static_cast<size_t>(config_.length);
  Batch batch{.size = request.size, .length = config_.length};
  const size_t count = static_cast<size_t>(request.size) * length;
  // Every batch has the mask, not only those with a window that is filled up: see DataTask.
  batch.tokens.resize(count), batch.targets.resize(count), batch.target_mask.resize(count);
  std::vector<int64_t> read(length + 1);
  for (int64_t row = 0; row < request.size; ++row) {
    const Window window = window_of(request, row, text.tokens());
    const auto targets = static_cast<size_t>(window.targets);
    text.read(window.begin, std::span(read).first(targets + 1));
    const auto offset = static_cast<ptrdiff_t>(row) * static_cast<ptrdiff_t>(length);
    std::copy_n(read.begin(), targets, batch.tokens.begin() + offset);
    std::copy_n(read.begin() + 1, targets, batch.targets.begin() + offset);
    const int64_t counted = std::max<int64_t>(window.targets - window.skipped, 0);
    std::fill_n(batch.target_mask.begin() + offset + window.targets - counted, counted, uint8_t{1});
  }
  return batch;
}

}  // namespace fmmformer::tasks
