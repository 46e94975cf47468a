// SPDX-License-Identifier: Apache-2.0
#include "tasks/copy.h"

#include "fmmformer/core/random.h"

namespace fmmformer::tasks {
namespace {

struct Row {
  int64_t* tokens;
  int64_t* targets;
  uint8_t* counts;
};

// All arrays are zeros when this begins.
void write_example(Random random, int64_t copied, int64_t symbols, int64_t length, const Row& row) {
  for (int64_t i = 0; i < copied; ++i) {
    row.tokens[i] = random.between(1, symbols);
    row.tokens[copied + 1 + i] = row.tokens[i];
  }
  for (int64_t i = 0; i + 1 < length; ++i) row.targets[i] = row.tokens[i + 1];
  for (int64_t i = copied - 1; i < 2 * copied; ++i) row.counts[i] = 1;
}

}  // namespace

CopyTask::CopyTask(const CopyConfig& config, uint64_t seed) : config_(config), seed_(seed) {}

int64_t CopyTask::shortest_copy() const { return config_.length / 4; }
int64_t CopyTask::longest_copy() const { return (config_.length - 1) / 2 - 1; }

Batch CopyTask::batch(const BatchRequest& request) const {
  const int64_t length = config_.length;
  const auto count = static_cast<size_t>(request.size * length);
  Batch batch{.size = request.size, .length = length};
  batch.tokens.resize(count);
  batch.targets.resize(count);
  batch.target_mask.resize(count);
  for (int64_t row = 0; row < request.size; ++row) {
    const int64_t example = request.index * request.size + row;
    Random random(
        derive_seed(seed_, "copy", static_cast<int64_t>(request.split), request.round, example));
    const int64_t copied = random.between(shortest_copy(), longest_copy());
    const auto offset = row * length;
    write_example(random, copied, config_.symbols, length,
                  {batch.tokens.data() + offset, batch.targets.data() + offset,
                   batch.target_mask.data() + offset});
  }
  return batch;
}

std::string CopyTask::token_text(int64_t token) const {
  return token == 0 ? "|" : std::to_string(token);
}

}  // namespace fmmformer::tasks
