// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tasks/task.h"

namespace fmmformer::tasks {

/// The copy task: n symbols, a separator, the same n symbols again, then padding (which is the
/// separator too), M tokens in all:
///
///   tokens    s_1 .. s_n  0  s_1 .. s_n  0 .. 0         s uniform in 1 .. symbols
///   targets   the next token; the last one's is 0
///   counts    positions n - 1 .. 2n - 1: the separator and the repetition, n + 1 of them
///
/// n is uniform in floor(M / 4) .. floor((M - 1) / 2) - 1. A model can be right
/// everywhere that counts: before the separator only the position just in front of it counts, so
/// the answer there is always the separator. To repeat, it must look back n tokens, at least
/// floor(M / 4): one layer with a narrower band cannot.
class CopyTask : public Task {
 public:
  CopyTask(const CopyConfig& config, uint64_t seed);

  Batch batch(const BatchRequest& request) const override;
  int64_t examples(Split) const override { return 0; }
  int64_t vocabulary() const override { return config_.symbols + 1; }
  int64_t classes() const override { return 0; }
  int64_t length() const override { return config_.length; }
  std::string token_text(int64_t token) const override;

  int64_t shortest_copy() const;  // of n
  int64_t longest_copy() const;

 private:
  CopyConfig config_;
  uint64_t seed_;
};

}  // namespace fmmformer::tasks
