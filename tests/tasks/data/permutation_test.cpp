// SPDX-License-Identifier: Apache-2.0
#include "tasks/data/permutation.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace fmmformer::tasks {
namespace {

void expect_bijection(uint64_t count, uint64_t key) {
  std::vector<bool> seen(count);
  const Permutation permutation(count, key);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t to = permutation(i);
    ASSERT_LT(to, count);
    ASSERT_FALSE(seen[to]) << count << ": " << to << " twice";
    seen[to] = true;
  }
}

TEST(Permutation, TakesEveryNumberOnceWhateverTheCount) {
  for (uint64_t count = 1; count <= 200; ++count) {
    for (const uint64_t key : {0ULL, 1ULL, 0xFFFF'FFFF'FFFF'FFFFULL}) expect_bijection(count, key);
  }
  for (const uint64_t count : {4095, 4096, 4097, 96'000, 160'000, 1'000'003}) {
    expect_bijection(count, 7);
  }
}

TEST(Permutation, StaysInsideForCountsThatNobodyCanTry) {
  for (const uint64_t count : {(1ULL << 40) + 1, (1ULL << 63) + 1, ~0ULL}) {
    const Permutation permutation(count, 3);
    for (uint64_t i = 0; i < 1000; ++i) {
      EXPECT_LT(permutation(i), count);
      EXPECT_LT(permutation(count - 1 - i), count);
    }
  }
}

TEST(Permutation, IsTheSameOnEveryMachine) {
  const Permutation permutation(10, 42);
  std::vector<uint64_t> order;
  for (uint64_t i = 0; i < 10; ++i) order.push_back(permutation(i));
  EXPECT_EQ(order, (std::vector<uint64_t>{0, 2, 4, 6, 3, 7, 5, 9, 8, 1}));
}

// With 10,000 keys a place holds each of 10 numbers 1,000 times, give or take 30.
TEST(Permutation, PutsEveryNumberAtEveryPlaceEquallyOften) {
  std::array<std::array<int, 10>, 10> seen{};
  for (uint64_t key = 0; key < 10'000; ++key) {
    const Permutation permutation(10, key);
    for (uint64_t i = 0; i < 10; ++i) ++seen[i][permutation(i)];
  }
  for (const auto& place : seen) {
    for (const int count : place) EXPECT_NEAR(count, 1000, 150);
  }
}

// Neighbours in one order must not be neighbours in the next: of 5,000 pairs, one or two by chance.
TEST(Permutation, KeepsNoNeighboursTogether) {
  const Permutation permutation(5000, 1);
  int neighbours = 0;
  for (uint64_t i = 0; i + 1 < 5000; ++i) neighbours += permutation(i) + 1 == permutation(i + 1);
  EXPECT_LE(neighbours, 8);
}

}  // namespace
}  // namespace fmmformer::tasks
