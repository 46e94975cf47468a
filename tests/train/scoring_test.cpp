// SPDX-License-Identifier: Apache-2.0
#include "train/scoring.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/temporary_folder.h"
#include "fmmformer/core/random.h"
#include "models/configs.h"
#include "tasks/copy.h"
#include "tasks/wikitext.h"

namespace fmmformer::train {
namespace {

constexpr int64_t kLength = 12, kTokens = 53, kWords = 40;

/// A text of random words, and a small model of it.
class TextScoring : public ::testing::Test {
 protected:
  TextScoring() {
    std::vector<std::string> words;
    for (int64_t i = 0; i < kWords; ++i) words.push_back(std::to_string(i));
    const auto vocabulary = tasks::Vocabulary::of_words(std::move(words));
    Random random(7);
    for (int64_t i = 0; i < kTokens; ++i) {
      text_.push_back(static_cast<uint32_t>(random.below(kWords)));
    }
    vocabulary.write(folder_.path());
    tasks::write_token_file(folder_.path(), tasks::Split::kTest, vocabulary,
                            tasks::packed_tokens(text_, vocabulary));
    ModelConfig config = testing::made_small(testing::wikitext_model(
        {.bandwidth = 3, .feature_maps = {FeatureMap::kElu}, .unit_features = true}));
    config.vocabulary = kWords, config.cutoffs = {10, 25};
    model_ = make_model(config, 5);
  }

  /// The losses of a window's targets, from a pass of its own; filled up behind the text's end.
  std::vector<double> losses_of(int64_t begin) const {
    const auto token = [&](int64_t i) -> int64_t {
      return i < kTokens ? text_[static_cast<size_t>(i)] : 0;
    };
    Batch batch{.size = 1, .length = kLength};
    for (int64_t i = begin; i < begin + kLength; ++i) {
      batch.tokens.push_back(token(i));
      batch.targets.push_back(token(i + 1));
    }
    const BatchTensors tensors = batch_tensors(batch, at::kCPU);
    at::NoGradGuard no_gradient;
    const at::Tensor losses =
        model_->losses(tensors.inputs, tensors.targets, Pass{}).to(at::kDouble).contiguous();
    return {losses.const_data_ptr<double>(), losses.const_data_ptr<double>() + kLength};
  }

  Score score(tasks::Order order, int64_t batch_size) const {
    const tasks::WikitextTask task(
        {.data = folder_.path(), .length = kLength, .columns = 1, .vocabulary = 0});
    return Evaluator(*model_, task, {})
        .score({.split = tasks::Split::kTest, .order = order, .batch_size = batch_size});
  }

  TemporaryFolder folder_;
  std::vector<uint32_t> text_;
  std::shared_ptr<Model> model_;
};

TEST_F(TextScoring, ASlidingWindowEqualsALoopOverTheTargets) {
  double expected = 0;
  for (const double loss : losses_of(0)) expected += loss;
  for (int64_t begin = 1; begin + kLength < kTokens; ++begin) {
    expected += losses_of(begin).back();
  }
  for (const int64_t batch_size : {1, 7, 64}) {
    const Score score = this->score(tasks::Order::kSliding, batch_size);
    EXPECT_EQ(score.count, kTokens - 1);
    EXPECT_NEAR(score.loss, expected, 1e-5 * expected);
  }
}

TEST_F(TextScoring, WindowsWithoutOverlapCountEveryTargetOnce) {
  double expected = 0;
  for (int64_t target = 1; target < kTokens; ++target) {
    const int64_t begin = (target - 1) / kLength * kLength;
    expected += losses_of(begin)[static_cast<size_t>(target - 1 - begin)];
  }
  for (const int64_t batch_size : {1, 3, 64}) {
    const Score score = this->score(tasks::Order::kStored, batch_size);
    EXPECT_EQ(score.count, kTokens - 1);
    EXPECT_NEAR(score.loss, expected, 1e-5 * expected);
  }
}

TEST_F(TextScoring, APlanThatComesAgainScoresTheSameEveryTimeAndAnotherInBetweenItsOwn) {
  const tasks::WikitextTask task(
      {.data = folder_.path(), .length = kLength, .columns = 1, .vocabulary = 0});
  Evaluator evaluator(*model_, task, {});
  EvaluationPlan plan{.split = tasks::Split::kTest, .batch_size = 2, .comes_again = true};
  const EvaluationPlan other{.split = tasks::Split::kTest, .batch_size = 3};
  for (plan.round = 0; plan.round < 3; ++plan.round) {
    EXPECT_EQ(evaluator.score(plan).loss, score(tasks::Order::kStored, 2).loss);
    EXPECT_EQ(evaluator.score(other).loss, score(tasks::Order::kStored, 3).loss);
  }
}

TEST(Evaluator, ATaskWithoutEndHasFreshExamplesThoughItsPlanComesAgain) {
  const tasks::CopyTask task({.length = 16}, 1);
  const auto model = make_model(testing::small_copy(testing::causal_softmax()), 3);
  Evaluator evaluator(*model, task, {});
  EvaluationPlan plan{.batches = 2, .batch_size = 4, .comes_again = true};
  const double first = evaluator.score(plan).loss;
  plan.round = 1;
  const double second = evaluator.score(plan).loss;
  EXPECT_NE(second, first);
  EXPECT_EQ(second, Evaluator(*model, task, {}).score(plan).loss);
}

TEST(EvaluationBatches, ASlidingOrderIsForTasksThatHaveIt) {
  const tasks::CopyTask copy({.length = 16}, 1);
  EXPECT_THROW(evaluation_batches(copy, {.order = tasks::Order::kSliding, .batches = 3}),
               std::invalid_argument);
  EXPECT_EQ(evaluation_batches(copy, {.batches = 3}), 3);
}

}  // namespace
}  // namespace fmmformer::train
