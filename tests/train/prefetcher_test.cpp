// SPDX-License-Identifier: Apache-2.0
#include "train/prefetcher.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>

namespace fmmformer::train {
namespace {

using namespace std::chrono_literals;

class PrefetcherThreads : public testing::TestWithParam<int64_t> {};

// Later items are often done before earlier ones.
int64_t slow_square(int64_t index) {
  std::this_thread::sleep_for(std::chrono::microseconds((index * 7919) % 200));
  return index * index;
}

TEST_P(PrefetcherThreads, GiveTheItemsInOrder) {
  Prefetcher<int64_t> items(slow_square, {.threads = GetParam(), .capacity = 3, .first = 10});
  for (int64_t index = 10; index < 300; ++index) {
    EXPECT_EQ(items.index(), index);
    ASSERT_EQ(items.next(), index * index);
  }
}

TEST_P(PrefetcherThreads, PassOnAnErrorAtItsPlaceAndGoOn) {
  Prefetcher<int64_t> items(
      [](int64_t index) {
        if (index % 5 == 3) throw std::runtime_error("item " + std::to_string(index));
        return slow_square(index);
      },
      {.threads = GetParam()});
  for (int64_t index = 0; index < 20; ++index) {
    if (index % 5 != 3) {
      ASSERT_EQ(items.next(), index * index);
      continue;
    }
    try {
      items.next();
      FAIL() << "no error";
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(error.what(), "item " + std::to_string(index));
    }
  }
}

TEST_P(PrefetcherThreads, StopAtTheEnd) {
  std::atomic<int64_t> highest{-1};
  Prefetcher<int64_t> items(
      [&](int64_t index) {
        for (int64_t seen = highest; seen < index && !highest.compare_exchange_weak(seen, index);) {
        }
        return index;
      },
      {.threads = GetParam(), .capacity = 8, .end = 5});
  for (int64_t index = 0; index < 5; ++index) EXPECT_EQ(items.next(), index);
  EXPECT_THROW(items.next(), std::out_of_range);
  EXPECT_EQ(highest, 4);
}

TEST_P(PrefetcherThreads, WorkAheadNoFurtherThanTheCapacity) {
  std::atomic<int64_t> made{0};
  Prefetcher<int64_t> items([&](int64_t index) { return ++made, index; },
                            {.threads = GetParam(), .capacity = 3});
  std::this_thread::sleep_for(20ms);
  EXPECT_LE(made, 3);
  items.next();
  std::this_thread::sleep_for(20ms);
  EXPECT_LE(made, 4);
}

TEST_P(PrefetcherThreads, CarryItemsThatCanOnlyBeMoved) {
  Prefetcher<std::unique_ptr<int64_t>> items(
      [](int64_t index) { return std::make_unique<int64_t>(index); }, {.threads = GetParam()});
  for (int64_t index = 0; index < 10; ++index) EXPECT_EQ(*items.next(), index);
}

TEST_P(PrefetcherThreads, EndCleanlyAtAnyMoment) {
  for (int64_t taken = 0; taken < 30; ++taken) {
    Prefetcher<int64_t> items(slow_square, {.threads = GetParam(), .capacity = 2});
    for (int64_t index = 0; index < taken % 5; ++index) items.next();
  }
}

INSTANTIATE_TEST_SUITE_P(Numbers, PrefetcherThreads, testing::Values(0, 1, 2, 7));

}  // namespace
}  // namespace fmmformer::train
