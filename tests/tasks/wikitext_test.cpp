// SPDX-License-Identifier: Apache-2.0
#include "tasks/wikitext.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <thread>

#include "core/temporary_folder.h"
#include "tasks/data_files.h"

namespace fmmformer::tasks {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

/// Texts whose token number i is i: a token tells where it stands.
class Wikitext : public testing::Test {
 protected:
  Wikitext() {
    std::vector<std::string> words = {"<eos>"};
    for (int i = 1; i < 1000; ++i) words.push_back("word" + std::to_string(i));
    const Vocabulary vocabulary = Vocabulary::of_words(std::move(words));
    vocabulary.write(folder_.path());
    write(vocabulary, Split::kTrain, 107);
    write(vocabulary, Split::kValid, 43);
    write(vocabulary, Split::kTest, 41);
  }

  void write(const Vocabulary& vocabulary, Split split, uint32_t count) const {
    std::vector<uint32_t> tokens(count);
    std::iota(tokens.begin(), tokens.end(), 0U);
    write_token_file(folder_.path(), split, vocabulary, packed_tokens(tokens, vocabulary));
  }

  WikitextConfig config() const {
    return {.data = folder_.path(), .length = 8, .columns = 5, .vocabulary = 0};
  }

  static std::vector<int64_t> row_of(const std::vector<int64_t>& grid, int64_t row) {
    return {grid.begin() + row * 8, grid.begin() + row * 8 + 8};
  }

  /// How often each target counts in a pass; each must follow its token.
  static std::map<int64_t, int> counted_targets(const Task& task, Split split, Order order,
                                                int64_t examples) {
    constexpr int64_t kSize = 3;
    std::map<int64_t, int> counted;
    for (int64_t index = 0; index * kSize < examples; ++index) {
      const Batch batch =
          task.batch({.split = split, .order = order, .index = index, .size = kSize});
      for (size_t i = 0; i < batch.targets.size(); ++i) {
        if (batch.target_mask[i] == 0) continue;
        EXPECT_EQ(batch.targets[i], batch.tokens[i] + 1);
        ++counted[batch.targets[i]];
      }
    }
    return counted;
  }

  TemporaryFolder folder_;
};

TEST_F(Wikitext, TrainingReadsColumnsSideBySideAndGoesOnWhereItEnded) {
  const WikitextTask task(config());  // 107 tokens in 5 columns of 21
  const Batch first = task.batch({.order = Order::kShuffled, .index = 0, .size = 5});
  const Batch second = task.batch({.order = Order::kShuffled, .index = 1, .size = 5});
  for (int64_t column = 0; column < 5; ++column) {
    const int64_t b = column * 21;
    EXPECT_THAT(row_of(first.tokens, column),
                ElementsAre(b, b + 1, b + 2, b + 3, b + 4, b + 5, b + 6, b + 7));
    EXPECT_THAT(row_of(first.targets, column),
                ElementsAre(b + 1, b + 2, b + 3, b + 4, b + 5, b + 6, b + 7, b + 8));
    EXPECT_EQ(row_of(second.tokens, column)[0], b + 8);
  }
  EXPECT_THAT(first.target_mask, Each(1));
  EXPECT_TRUE(first.token_mask.empty());
}

TEST_F(Wikitext, TheLastWindowOfAColumnIsFilledUpAndCountsWhatItHas) {
  const Batch last =
      WikitextTask(config()).batch({.order = Order::kShuffled, .index = 2, .size = 5});
  EXPECT_EQ(last.length, 8);
  EXPECT_THAT(row_of(last.tokens, 1), ElementsAre(37, 38, 39, 40, 0, 0, 0, 0));
  EXPECT_THAT(row_of(last.targets, 1), ElementsAre(38, 39, 40, 41, 0, 0, 0, 0));
  EXPECT_EQ(last.counted(), 5 * 4);
  EXPECT_THAT(std::vector<int>(last.target_mask.begin(), last.target_mask.begin() + 8),
              ElementsAre(1, 1, 1, 1, 0, 0, 0, 0));
}

TEST_F(Wikitext, EveryPassOfTrainingIsTheSameAndTakesEachTargetOfAColumnOnce) {
  const WikitextTask task(config());
  const auto counted = counted_targets(task, Split::kTrain, Order::kShuffled, 15);
  EXPECT_EQ(counted.size(), 5U * 20U);  // the first token of a column is no target
  for (const auto& [target, times] : counted) {
    EXPECT_EQ(times, 1) << target;
    EXPECT_NE(target % 21, 0);
  }
  for (int64_t index = 0; index < 3; ++index) {
    EXPECT_EQ(task.batch({.order = Order::kShuffled, .index = index, .size = 5}).tokens,
              task.batch({.order = Order::kShuffled, .index = index + 300, .size = 5}).tokens);
  }
}

TEST_F(Wikitext, PartsOfABatchAreTheBatchInParts) {
  const WikitextTask task({.data = folder_.path(), .length = 8, .columns = 6, .vocabulary = 0});
  const Batch whole = task.batch({.order = Order::kShuffled, .index = 1, .size = 6});
  std::vector<int64_t> parts;
  for (int64_t part = 0; part < 3; ++part) {
    const Batch batch = task.batch({.order = Order::kShuffled, .index = 3 + part, .size = 2});
    parts.insert(parts.end(), batch.tokens.begin(), batch.tokens.end());
  }
  EXPECT_EQ(parts, whole.tokens);
}

TEST_F(Wikitext, StoredWindowsCountEveryTargetOnce) {
  const WikitextTask task(config());
  for (const auto& [split, tokens] : {std::pair(Split::kValid, 43), std::pair(Split::kTest, 41)}) {
    const int64_t windows = task.examples(split);
    EXPECT_EQ(windows, split == Split::kValid ? 6 : 5);
    const auto counted = counted_targets(task, split, Order::kStored, windows);
    EXPECT_EQ(std::ssize(counted), tokens - 1);
    for (const auto& [target, times] : counted) EXPECT_EQ(times, 1) << target;
  }
}

TEST_F(Wikitext, StoredBatchesBeyondTheEndHaveTheShapeOfTheOthersAndDoNotCount) {
  const Batch last = WikitextTask(config()).batch({.split = Split::kValid, .index = 1, .size = 5});
  EXPECT_THAT(row_of(last.tokens, 0), ElementsAre(40, 41, 0, 0, 0, 0, 0, 0));
  EXPECT_EQ(last.counted(), 2);
  EXPECT_EQ(last.tokens.size(), 40U);
  EXPECT_EQ(row_of(last.tokens, 4), row_of(last.tokens, 0));
}

TEST_F(Wikitext, SlidingWindowsCountEveryTargetOnceWithAllTheTokensThatAWindowHas) {
  const WikitextTask task(config());
  const int64_t windows = task.sliding_examples(Split::kTest);
  EXPECT_EQ(windows, 41 - 8);
  const auto counted = counted_targets(task, Split::kTest, Order::kSliding, windows);
  EXPECT_EQ(std::ssize(counted), 40);
  for (const auto& [target, times] : counted) EXPECT_EQ(times, 1) << target;
  const auto batch = [&](int64_t index) {
    return task.batch({.split = Split::kTest, .order = Order::kSliding, .index = index, .size = 2});
  };
  EXPECT_THAT(batch(0).target_mask, ElementsAre(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1));
  EXPECT_THAT(row_of(batch(1).tokens, 1), ElementsAre(3, 4, 5, 6, 7, 8, 9, 10));
  const Batch last = batch(16);  // window 32 and one too many
  EXPECT_EQ(last.counted(), 1);
  EXPECT_EQ(row_of(last.targets, 0).back(), 40);
}

TEST_F(Wikitext, ThreadsAndTheOrderOfRequestsChangeNothing) {
  const WikitextTask shared(config());
  constexpr int64_t kBatches = 40;
  std::vector<Batch> batches(kBatches);
  {
    std::vector<std::jthread> threads;
    for (int64_t first = 0; first < 4; ++first) {
      threads.emplace_back([&, first] {
        for (int64_t index = kBatches - 1 - first; index >= 0; index -= 4) {
          batches[static_cast<size_t>(index)] =
              shared.batch({.order = Order::kShuffled, .index = index, .size = 5});
        }
      });
    }
  }
  const WikitextTask alone(config());
  for (int64_t index = 0; index < kBatches; ++index) {
    const Batch batch = alone.batch({.order = Order::kShuffled, .index = index, .size = 5});
    EXPECT_EQ(batches[static_cast<size_t>(index)].tokens, batch.tokens);
    EXPECT_EQ(batches[static_cast<size_t>(index)].targets, batch.targets);
    EXPECT_EQ(batches[static_cast<size_t>(index)].target_mask, batch.target_mask);
  }
}

TEST_F(Wikitext, PredictsTokensOfTheVocabularyThatTheDataHas) {
  const WikitextTask task(config());
  EXPECT_EQ(task.vocabulary(), 1000);
  EXPECT_EQ(task.classes(), 0);
  EXPECT_EQ(task.length(), 8);
  EXPECT_EQ(task.token_text(0), "<eos>");
  EXPECT_EQ(task.token_text(7), "word7");
}

TEST_F(Wikitext, AVocabularyOfTheConfigNeedsNoDataUntilItIsReadAndMustFitThen) {
  const WikitextTask absent({.data = folder_ / "none", .vocabulary = 267'735});
  EXPECT_EQ(absent.vocabulary(), 267'735);
  EXPECT_THAT(error_of([&] { (void)absent.examples(Split::kTrain); }),
              AllOf(HasSubstr("there is no"), HasSubstr("data import wikitext")));
  WikitextConfig other = config();
  other.vocabulary = 999;
  EXPECT_THAT(error_of([&] { (void)WikitextTask(other).examples(Split::kValid); }),
              AllOf(HasSubstr("task.wikitext.vocabulary is 999"), HasSubstr("has 1000"),
                    HasSubstr("set the vocabulary to 0")));
}

TEST_F(Wikitext, ATextShorterThanAWindowIsRefused) {
  WikitextConfig wide = config();
  wide.length = 41;
  EXPECT_THAT(error_of([&] { (void)WikitextTask(wide).examples(Split::kTest); }),
              AllOf(HasSubstr("test.fmmtokens' is too short: it has 41 tokens"), HasSubstr("42"),
                    HasSubstr("task.wikitext.length")));
  EXPECT_EQ(WikitextTask(wide).examples(Split::kValid), 2);
  WikitextConfig many = config();
  many.columns = 13;
  EXPECT_THAT(
      error_of([&] { (void)WikitextTask(many).batch({.order = Order::kShuffled}); }),
      AllOf(HasSubstr("each of its 13 columns has 8 tokens"), HasSubstr("task.wikitext.columns")));
  many.columns = 11;
  EXPECT_EQ(WikitextTask(many).batch({.order = Order::kShuffled}).counted(), 8);
}

TEST_F(Wikitext, HasThePapersSizesUnlessToldOtherwise) {
  const WikitextConfig config;
  EXPECT_EQ(config.length, 256);
  EXPECT_EQ(config.columns, 96);
}

}  // namespace
}  // namespace fmmformer::tasks
