// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/core/random.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <set>
#include <vector>

namespace fmmformer {
namespace {

TEST(Random, IsTheSameOnEveryMachine) {
  Random random(0);  // SplitMix64's published first values for seed 0
  EXPECT_EQ(random.next(), 0xE220A8397B1DCDAFu);
  EXPECT_EQ(random.next(), 0x6E789E6AA1B965F4u);
}

TEST(Random, SeedsForDifferentPurposesDiffer) {
  std::set<uint64_t> seeds;
  for (uint64_t run = 0; run < 4; ++run) {
    for (const char* purpose : {"dropout", "data"}) {
      for (int step = -2; step < 100; ++step) seeds.insert(derive_seed(run, purpose, step));
    }
  }
  EXPECT_EQ(seeds.size(), 4u * 2 * 102);
  EXPECT_NE(derive_seed(1, 2, 3), derive_seed(1, 3, 2));
}

TEST(Random, NumbersBelowABoundAreUniform) {
  Random random(1);
  std::array<int, 7> counts{};
  for (int i = 0; i < 70000; ++i) ++counts[random.below(7)];
  for (const int count : counts) EXPECT_NEAR(count, 10000, 500);
  for (int i = 0; i < 100; ++i) {
    const int64_t value = random.between(-2, 2);
    EXPECT_TRUE(-2 <= value && value <= 2);
  }
}

TEST(Random, NormalsHaveMeanZeroAndVarianceOne) {
  Random random(2);
  double sum = 0, squares = 0;
  for (int i = 0; i < 100000; ++i) {
    const double x = random.normal();
    sum += x, squares += x * x;
  }
  EXPECT_NEAR(sum / 100000, 0, 0.02);
  EXPECT_NEAR(squares / 100000, 1, 0.03);
}

TEST(Random, AShuffleKeepsEveryItem) {
  std::vector<int> items(100);
  std::iota(items.begin(), items.end(), 0);
  Random random(3);
  random.shuffle(std::span(items));
  EXPECT_FALSE(std::is_sorted(items.begin(), items.end()));
  EXPECT_EQ(std::set<int>(items.begin(), items.end()).size(), 100u);
}

}  // namespace
}  // namespace fmmformer
