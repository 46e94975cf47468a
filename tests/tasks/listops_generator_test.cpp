// SPDX-License-Identifier: Apache-2.0
#include "tasks/listops_generator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "fmmformer/core/random.h"
#include "tasks/generator_reference.h"
#include "tasks/generator_statistics.h"
#include "tasks/recorded_dice.h"

namespace fmmformer::tasks {
namespace {

constexpr ListOpsOptions kShort{.min_length = 10, .max_length = 60};

// Reads tokens from left to right with a stack of open lists: another way than the generator's.
class Evaluator {
 public:
  int value(const std::vector<uint8_t>& tokens) {
    std::vector<std::vector<int>> open(1);  // the outermost holds the result
    std::vector<uint8_t> operators;
    for (const uint8_t token : tokens) {
      if (token >= kListOpsMin && token <= kListOpsSumModulo) {
        operators.push_back(token);
        open.emplace_back();
      } else if (token == kListOpsClose) {
        const int result = apply(operators.back(), open.back());
        widest = std::max(widest, open.back().size());
        narrowest = std::min(narrowest, open.back().size());
        deepest = std::max(deepest, operators.size());
        operators.pop_back();
        open.pop_back();
        open.back().push_back(result);
      } else {
        open.back().push_back(token - kListOpsDigit0);
      }
    }
    EXPECT_TRUE(operators.empty());
    EXPECT_EQ(open.front().size(), 1u);
    return open.front().front();
  }

  size_t widest = 0, narrowest = 100, deepest = 0;  // of all that it has seen

 private:
  static int apply(uint8_t operation, std::vector<int> list) {
    std::multiset<int> sorted(list.begin(), list.end());
    while (operation == kListOpsMedian && sorted.size() > 2) {
      sorted.erase(sorted.begin());
      sorted.erase(std::prev(sorted.end()));
    }
    switch (operation) {
      case kListOpsMin:
        return *sorted.begin();
      case kListOpsMax:
        return *sorted.rbegin();
      case kListOpsMedian:
        return (*sorted.begin() + *sorted.rbegin()) / 2;
      default:
        return std::accumulate(list.begin(), list.end(), 0) % 10;
    }
  }
};

TEST(ListOpsGenerator, LabelsAreWhatTheExpressionsAreWorth) {
  Evaluator evaluator;
  for (int64_t i = 0; i < 500; ++i) {
    const auto example = make_listops_example({}, 1, i);
    EXPECT_EQ(evaluator.value(example.tokens), example.label) << "example " << i;
  }
  EXPECT_EQ(evaluator.narrowest, 2u);
  EXPECT_EQ(evaluator.widest, 10u);
  EXPECT_EQ(evaluator.deepest, 9u);  // the tenth level is digits
}

TEST(ListOpsGenerator, LengthsLieBetweenTheLimitsWhichAreExcluded) {
  std::set<size_t> lengths;
  for (int64_t i = 0; i < 300; ++i) {
    lengths.insert(make_listops_example({.min_length = 20, .max_length = 26}, 2, i).tokens.size());
  }
  EXPECT_THAT(lengths, ::testing::ElementsAre(21, 22, 23, 24, 25));
}

TEST(ListOpsGenerator, DepthAndArgumentsHaveLimits) {
  Evaluator evaluator;
  for (int64_t i = 0; i < 500; ++i) {
    ListOpsOptions options = kShort;
    options.max_depth = 4;
    options.max_arguments = 3;
    evaluator.value(make_listops_example(options, 3, i).tokens);
  }
  EXPECT_EQ(evaluator.deepest, 3u);
  EXPECT_EQ(evaluator.widest, 3u);
}

TEST(ListOpsGenerator, AnExampleIsAFunctionOfSeedAndIndexAlone) {
  const auto fifth = make_listops_example(kShort, 7, 5);
  make_listops_example(kShort, 7, 6);
  EXPECT_EQ(make_listops_example(kShort, 7, 5), fifth);
  EXPECT_NE(make_listops_example(kShort, 7, 6), fifth);
  EXPECT_NE(make_listops_example(kShort, 8, 5), fifth);
}

TEST(ListOpsGenerator, ManyThreadsGiveWhatOneGivesInTheSameOrder) {
  const auto all = [](int threads) {
    std::vector<ListOpsExample> examples;
    generate_listops({.count = 1000, .seed = 4, .threads = threads}, kShort,
                     [&](const ListOpsExample& example) { examples.push_back(example); });
    return examples;
  };
  const auto expected = all(1);
  ASSERT_EQ(expected.size(), 1000u);
  EXPECT_EQ(expected[777], make_listops_example(kShort, 4, 777));
  EXPECT_EQ(all(3), expected);
  EXPECT_EQ(all(8), expected);
}

TEST(ListOpsGenerator, LongExamplesAreAllDifferent) {
  std::set<std::string> seen;
  for (int64_t i = 0; i < 300; ++i) seen.insert(listops_line(make_listops_example({}, 1, i)));
  EXPECT_EQ(seen.size(), 300u);
}

TEST(ListOpsGenerator, TextIsThePublishedFormWithoutRoundBrackets) {
  const ListOpsExample example{
      .tokens = {kListOpsMax, 3, 10, kListOpsMin, 5, 8, kListOpsClose, kListOpsMedian, 1, 2,
                 kListOpsClose, kListOpsSumModulo, 6, 7, kListOpsClose, kListOpsClose},
      .label = 9};
  EXPECT_EQ(listops_line(example), "[MAX 2 9 [MIN 4 7 ] [MED 0 1 ] [SM 5 6 ] ]\t9\n");
}

TEST(ListOpsGenerator, OptionsThatAdmitNothingAreAnError) {
  EXPECT_THROW(make_listops_example({.min_length = 10, .max_length = 11}, 1, 0),
               std::invalid_argument);
  EXPECT_THROW(make_listops_example({.max_depth = 0}, 1, 0), std::invalid_argument);
  EXPECT_THROW(make_listops_example({.max_arguments = 1}, 1, 0), std::invalid_argument);
  EXPECT_THROW(make_listops_example({.max_depth = 2}, 1, 0), std::invalid_argument);
}

TEST(ListOpsGenerator, WithPythonsRandomNumbersItWritesTheLinesOfThePublishedGenerator) {
  testing::PythonDice dice(testing::kListOpsSeed);
  std::string lines;
  for (int i = 0; i < testing::kListOpsLines; ++i) {
    lines += listops_line(make_listops_example({}, dice));
  }
  EXPECT_EQ(name_hash(lines), testing::kListOpsHash);
}

TEST(ListOpsGenerator, ExamplesAreDistributedAsThePublishedOnes) {
  const auto& statistics = testing::listops_statistics();
  testing::Histograms<ListOpsExample> ours(statistics);
  generate_listops({.count = 20000, .seed = 1, .threads = 2}, {},
                   [&](const ListOpsExample& example) { ours.add(example); });
  ASSERT_EQ(testing::kListOpsReference.size(), statistics.size());
  for (size_t i = 0; i < statistics.size(); ++i) {
    EXPECT_LT(testing::surprise(ours[i], testing::kListOpsReference[i]), 3.5) << statistics[i].name;
  }
}

TEST(ListOpsGenerator, TheComparisonNoticesAnotherDistribution) {
  const auto& statistics = testing::listops_statistics();
  testing::Histograms<ListOpsExample> shorter(statistics);
  generate_listops({.count = 2000, .seed = 1, .threads = 2}, {.max_arguments = 9},
                   [&](const ListOpsExample& example) { shorter.add(example); });
  EXPECT_GT(testing::surprise(shorter[0], testing::kListOpsReference[0]), 10) << "tokens";
  EXPECT_GT(testing::surprise(shorter[3], testing::kListOpsReference[3]), 10) << "arguments";
}

}  // namespace
}  // namespace fmmformer::tasks
