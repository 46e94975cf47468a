// SPDX-License-Identifier: Apache-2.0
// A task: where examples come from. Every batch is a pure function of the seed and the request, so
// that neither order, nor resuming, nor the number of data threads can change what a model sees.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fmmformer/core/batch.h"
#include "tasks/config.h"
#include "tasks/split.h"

namespace fmmformer::tasks {

/// How a data set's examples follow each other. Tasks that generate theirs have no order.
enum class Order {
  kStored,    // once, as they lie in the file; what is missing in the last batch does not count
  kShuffled,  // for training: without end, and every pass over the split in another order if the
              // task shuffles (a text to predict goes on in columns instead, wikitext.h)
  kSliding,   // once, for the evaluation of language models: a window for almost every target, so
              // that each is predicted from as many tokens as a window has
};

/// Which batch: number `index` of the `round`-th pass over a split for evaluation. Tasks that
/// generate their examples draw fresh ones every round; data sets give the same ones again.
struct BatchRequest {
  Split split = Split::kTrain;
  Order order = Order::kStored;
  int64_t round = 0;
  int64_t index = 0;
  int64_t size = 1;
};

class Task {
 public:
  virtual ~Task() = default;

  /// Safe to call from several threads at once.
  virtual Batch batch(const BatchRequest& request) const = 0;

  /// Examples of one pass over a split; 0: as many as one asks for. A data set opens its file here
  /// at the latest.
  virtual int64_t examples(Split split) const = 0;
  /// The same in sliding order; 0: the task has no such order.
  virtual int64_t sliding_examples(Split) const { return 0; }
  /// Whether there is such a split; a data set looks for its file, and opens none.
  virtual bool has(Split) const { return true; }

  virtual int64_t vocabulary() const = 0;  // tokens are 0 .. vocabulary - 1
  virtual int64_t classes() const = 0;     // 0: the model predicts tokens
  virtual int64_t length() const = 0;      // of every example, padding included
  virtual bool is_pair() const { return false; }

  /// A token for the eyes of a person.
  virtual std::string token_text(int64_t token) const { return std::to_string(token); }
};

/// The task that a config names. Opens no files: a config can be looked at without its data. Throws
/// ConfigError or std::invalid_argument for one that does not make sense.
std::unique_ptr<Task> make_task(const TaskConfig& config, uint64_t seed);

}  // namespace fmmformer::tasks
