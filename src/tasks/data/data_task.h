// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <memory>
#include <mutex>

#include "tasks/data/cache.h"
#include "tasks/data/data_set.h"
#include "tasks/task.h"

namespace fmmformer::tasks {

/// How documents become tokens: token = byte + first_token, 0 is padding.
struct TokenShape {
  int64_t length = 0;      // tokens of an example, padding included
  int64_t bytes = 0;       // of a document that are read at most
  int64_t vocabulary = 0;  // as large as the paper's tables, which have rows to spare
  int64_t first_token = 0;
};

/// Of grey pictures.
TokenShape pixel_tokens(const PixelsConfig& config);

/// A task over data files, which are opened when first asked for.
///
/// Masked are the tokens that are 0: the padding, and what a task lets share its number.
///
/// Shuffled, example number p of the endless stream is number p mod E of pass p / E, of E examples:
/// each pass takes every example once, and batches go on across its end. In stored order the last
/// batch has the size of all others: its rows beyond the end repeat the last example and do not
/// count.
class DataTask : public Task {
 public:
  /// Throws std::invalid_argument when more bytes than tokens are to be read.
  DataTask(const DataSet& data, const TokenShape& shape, std::filesystem::path folder,
           uint64_t seed);

  Batch batch(const BatchRequest& request) const override;
  int64_t examples(Split split) const override { return cache(split).examples(); }
  bool has(Split split) const override {
    return std::filesystem::exists(cache_path(folder_, split));
  }
  int64_t vocabulary() const override { return shape_.vocabulary; }
  int64_t classes() const override { return std::ssize(data_.labels); }
  int64_t length() const override { return shape_.length; }
  bool is_pair() const override { return data_.pair; }
  std::string token_text(int64_t token) const override;

  /// Throws DataError when the file cannot be used.
  const DataCache& cache(Split split) const;

 private:
  struct Place {
    int64_t example;
    bool counts;
  };
  Place place_of(const BatchRequest& request, int64_t row, int64_t count) const;
  void write_document(std::string_view document, int64_t* tokens, uint8_t* mask) const;

  const DataSet& data_;
  const TokenShape shape_;
  const std::filesystem::path folder_;
  const uint64_t seed_;
  mutable std::mutex opening_;
  mutable std::array<std::unique_ptr<const DataCache>, kSplits.size()> caches_;
};

}  // namespace fmmformer::tasks
