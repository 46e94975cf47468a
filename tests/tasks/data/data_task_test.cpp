// SPDX-License-Identifier: Apache-2.0
#include "tasks/data/data_task.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <thread>

#include "core/temporary_folder.h"
#include "tasks/data_files.h"
#include "tasks/text.h"

namespace fmmformer::tasks {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kExamples = 23;

/// Example i is the text of i + 1 bytes of 'a' + i, with the label i mod 2.
class DataTaskTest : public testing::Test {
 protected:
  DataTaskTest() {
    CacheWriter set;
    for (int i = 0; i < kExamples; ++i) {
      set.add(std::string(static_cast<size_t>(i) + 1, static_cast<char>('a' + i)),
              static_cast<uint16_t>(i % 2));
    }
    set.write(folder_.path(), TaskName::kText, Split::kTrain);
    set.write(folder_.path(), TaskName::kText, Split::kValid);
  }

  TextTask task(uint64_t seed = 1) const {
    return TextTask({.data = folder_.path(), .length = 32, .bytes = 30}, seed);
  }

  /// Which examples a batch has.
  static std::vector<int64_t> examples_of(const Batch& batch) {
    std::vector<int64_t> examples;
    for (int64_t row = 0; row < batch.size; ++row) {
      examples.push_back(batch.tokens[static_cast<size_t>(row * batch.length)] - 1 - 'a');
    }
    return examples;
  }
  static std::vector<int64_t> stream_of(const Task& task, int64_t size, int64_t batches) {
    std::vector<int64_t> stream;
    for (int64_t index = 0; index < batches; ++index) {
      const Batch batch = task.batch({.order = Order::kShuffled, .index = index, .size = size});
      const auto part = examples_of(batch);
      stream.insert(stream.end(), part.begin(), part.end());
    }
    return stream;
  }

  TemporaryFolder folder_;
};

TEST_F(DataTaskTest, StoredOrderGoesThroughTheSplitOnce) {
  const TextTask task = this->task();
  std::vector<int64_t> seen;
  int64_t counted = 0;
  for (int64_t index = 0; index < 5; ++index) {
    const Batch batch = task.batch({.split = Split::kValid, .index = index, .size = 5});
    for (int64_t row = 0; row < 5; ++row) {
      if (batch.target_mask[static_cast<size_t>(row)] == 1) {
        seen.push_back(examples_of(batch)[static_cast<size_t>(row)]);
        EXPECT_EQ(batch.targets[static_cast<size_t>(row)], seen.back() % 2);
      }
    }
    counted += batch.counted();
  }
  EXPECT_EQ(counted, kExamples);
  EXPECT_EQ(std::ssize(seen), kExamples);
  EXPECT_TRUE(std::ranges::is_sorted(seen));
}

TEST_F(DataTaskTest, TheLastBatchHasTheShapeOfTheOthersAndItsSpareRowsDoNotCount) {
  const Batch last = task().batch({.split = Split::kValid, .index = 4, .size = 5});
  EXPECT_EQ(last.size, 5);
  EXPECT_THAT(examples_of(last), ElementsAre(20, 21, 22, 22, 22));
  EXPECT_THAT(last.target_mask, ElementsAre(1, 1, 1, 0, 0));
  EXPECT_EQ(task().batch({.split = Split::kValid, .size = 5}).target_mask.size(), 5U);
}

TEST_F(DataTaskTest, EveryPassOfTheShuffledOrderTakesEveryExampleOnce) {
  const std::vector<int64_t> stream = stream_of(task(), 5, kExamples * 3 / 5 + 1);
  std::set<std::vector<int64_t>> orders;
  for (int64_t pass = 0; pass < 3; ++pass) {
    std::vector<int64_t> order(stream.begin() + pass * kExamples,
                               stream.begin() + (pass + 1) * kExamples);
    orders.insert(order);
    std::ranges::sort(order);
    for (int64_t i = 0; i < kExamples; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
  }
  EXPECT_EQ(orders.size(), 3U);
}

TEST_F(DataTaskTest, TheShuffledOrderFollowsFromTheSeedAndNotFromTheBatchSize) {
  EXPECT_EQ(stream_of(task(1), 5, 8), stream_of(task(1), 20, 2));
  EXPECT_NE(stream_of(task(1), 5, 8), stream_of(task(2), 5, 8));
}

TEST_F(DataTaskTest, ShuffledBatchesHaveNoTargetMaskAndStoredOnesAlwaysDo) {
  EXPECT_TRUE(task().batch({.order = Order::kShuffled, .size = 4}).target_mask.empty());
  EXPECT_THAT(task().batch({.size = 4}).target_mask, testing::Each(1));
}

TEST_F(DataTaskTest, ThreadsAndTheOrderOfRequestsChangeNothing) {
  const TextTask shared = task();
  constexpr int64_t kBatches = 40;
  std::vector<Batch> batches(kBatches);
  {
    std::vector<std::jthread> threads;
    for (int64_t first = 0; first < 4; ++first) {
      threads.emplace_back([&, first] {
        for (int64_t index = kBatches - 1 - first; index >= 0; index -= 4) {
          batches[static_cast<size_t>(index)] =
              shared.batch({.order = Order::kShuffled, .index = index, .size = 7});
        }
      });
    }
  }
  for (int64_t index = 0; index < kBatches; ++index) {
    const Batch alone = task().batch({.order = Order::kShuffled, .index = index, .size = 7});
    EXPECT_EQ(batches[static_cast<size_t>(index)].tokens, alone.tokens);
    EXPECT_EQ(batches[static_cast<size_t>(index)].targets, alone.targets);
  }
}

TEST_F(DataTaskTest, ALongDocumentIsCutAndAShortOnePadded) {
  const TextTask task({.data = folder_.path(), .length = 4, .bytes = 3}, 1);
  const Batch batch = task.batch({.split = Split::kValid, .size = 5});
  const auto row = [&](size_t i) {
    return std::vector<int64_t>(batch.tokens.begin() + static_cast<ptrdiff_t>(4 * i),
                                batch.tokens.begin() + static_cast<ptrdiff_t>(4 * i + 4));
  };
  EXPECT_THAT(row(0), ElementsAre('a' + 1, 0, 0, 0));
  EXPECT_THAT(row(4), ElementsAre('e' + 1, 'e' + 1, 'e' + 1, 0));
}

TEST_F(DataTaskTest, FilesAreOpenedWhenTheyAreNeeded) {
  const TextTask task = this->task();
  EXPECT_EQ(task.examples(Split::kTrain), kExamples);
  EXPECT_THAT(error_of([&] { (void)task.examples(Split::kTest); }), HasSubstr("test.fmmdata"));
  EXPECT_THAT(error_of([&] { (void)task.batch({.split = Split::kTest}); }),
              HasSubstr("fmmformer data import text"));
}

TEST(Tasks, EveryTaskCanBeMadeWithoutItsData) {
  for (const auto& entry : EnumTable<TaskName>::entries()) {
    TaskConfig config;
    config.name = entry.value;
    EXPECT_GT(make_task(config, 1)->length(), 0) << entry.name;
  }
}

}  // namespace
}  // namespace fmmformer::tasks
