// SPDX-License-Identifier: Apache-2.0
#include "tasks/copy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <span>

namespace fmmformer::tasks {
namespace {

struct CopyExample {
  std::span<const int64_t> tokens, targets;
  std::span<const uint8_t> counts;

  int64_t copied() const {  // the separator is the first zero
    return std::ranges::find(tokens, 0) - tokens.begin();
  }
};

CopyExample example_of(const Batch& batch, int64_t row) {
  const auto offset = static_cast<size_t>(row * batch.length),
             length = static_cast<size_t>(batch.length);
  return {std::span(batch.tokens).subspan(offset, length),
          std::span(batch.targets).subspan(offset, length),
          std::span(batch.target_mask).subspan(offset, length)};
}

const CopyTask kTask({.length = 128, .symbols = 10}, 7);

TEST(CopyTask, AnExampleIsSymbolsSeparatorTheSameSymbolsAndPadding) {
  const Batch batch = kTask.batch({.size = 50});
  for (int64_t row = 0; row < 50; ++row) {
    const CopyExample example = example_of(batch, row);
    const auto n = static_cast<size_t>(example.copied());
    for (size_t i = 0; i < n; ++i) {
      EXPECT_GE(example.tokens[i], 1);
      EXPECT_LE(example.tokens[i], 10);
      EXPECT_EQ(example.tokens[n + 1 + i], example.tokens[i]);
    }
    for (size_t i = 2 * n + 1; i < 128; ++i) EXPECT_EQ(example.tokens[i], 0);
  }
}

TEST(CopyTask, ATargetIsTheNextTokenAndTheRepetitionWithItsSeparatorCounts) {
  const Batch batch = kTask.batch({.size = 20});
  for (int64_t row = 0; row < 20; ++row) {
    const CopyExample example = example_of(batch, row);
    const int64_t n = example.copied();
    for (int64_t i = 0; i < 128; ++i) {
      EXPECT_EQ(example.targets[i], i < 127 ? example.tokens[i + 1] : 0);
      EXPECT_EQ(example.counts[i], i >= n - 1 && i <= 2 * n - 1);
    }
  }
}

TEST(CopyTask, LengthsCoverTheWholeRangeOfThePaper) {
  for (const auto& [length, low, high] :
       {std::tuple{128, 32, 62}, {256, 64, 126}, {512, 128, 254}}) {
    const CopyTask task({.length = length}, 1);
    EXPECT_EQ(task.shortest_copy(), low);
    EXPECT_EQ(task.longest_copy(), high);
    std::set<int64_t> seen;
    for (int64_t index = 0; index < 20; ++index) {
      const Batch batch = task.batch({.index = index, .size = 200});
      for (int64_t row = 0; row < 200; ++row) seen.insert(example_of(batch, row).copied());
    }
    EXPECT_EQ(*seen.begin(), low);
    EXPECT_EQ(*seen.rbegin(), high);
    EXPECT_EQ(seen.size(), static_cast<size_t>(high - low + 1));
  }
}

TEST(CopyTask, SymbolsAreEquallyFrequent) {
  std::map<int64_t, int> counts;
  const Batch batch = kTask.batch({.size = 2000});
  for (const int64_t token : batch.tokens) ++counts[token];
  const double all = static_cast<double>(batch.tokens.size() - counts[0]);
  for (int64_t symbol = 1; symbol <= 10; ++symbol) EXPECT_NEAR(counts[symbol] / all, 0.1, 0.005);
}

TEST(CopyTask, ABatchIsAFunctionOfItsRequestAlone) {
  const Batch first = kTask.batch({.index = 5, .size = 8});
  kTask.batch({.index = 6, .size = 8});
  EXPECT_EQ(kTask.batch({.index = 5, .size = 8}).tokens, first.tokens);
  EXPECT_EQ(CopyTask({.length = 128}, 7).batch({.index = 5, .size = 8}).tokens, first.tokens);
}

TEST(CopyTask, SeedsSplitsRoundsAndIndicesGiveDifferentExamples) {
  const Batch first = kTask.batch({.size = 8});
  EXPECT_NE(CopyTask({.length = 128}, 8).batch({.size = 8}).tokens, first.tokens);
  EXPECT_NE(kTask.batch({.index = 1, .size = 8}).tokens, first.tokens);
  EXPECT_NE(kTask.batch({.round = 1, .size = 8}).tokens, first.tokens);
  EXPECT_NE(kTask.batch({.split = Split::kValid, .size = 8}).tokens, first.tokens);
}

TEST(CopyTask, ExamplesDoNotDependOnHowTheyAreCutIntoBatches) {
  const Batch both = kTask.batch({.index = 1, .size = 2});
  const Batch last = kTask.batch({.index = 3, .size = 1});
  EXPECT_TRUE(std::ranges::equal(example_of(both, 1).tokens, example_of(last, 0).tokens));
}

TEST(Tasks, TheConfigNamesTheTask) {
  const TaskConfig config{.copy = {.length = 32, .symbols = 3}};
  const auto task = make_task(config, 1);
  EXPECT_EQ(task->length(), 32);
  EXPECT_EQ(task->vocabulary(), 4);
  EXPECT_EQ(task->classes(), 0);
  EXPECT_EQ(task->token_text(0), "|");
}

}  // namespace
}  // namespace fmmformer::tasks
