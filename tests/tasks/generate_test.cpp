// SPDX-License-Identifier: Apache-2.0
#include "tasks/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace fmmformer::tasks {
namespace {

std::vector<int64_t> generated(const GenerateRequest& request, const auto& make) {
  std::vector<int64_t> all;
  generate_in_order(request, make, [&](int64_t value) { all.push_back(value); });
  return all;
}

TEST(Generate, TheSinkGetsEveryExampleInOrderHoweverLongEachTakes) {
  const auto slow_at_first = [](int64_t i) {
    if (i % 256 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return i * i;
  };
  const auto all = generated({.count = 1001, .threads = 4}, slow_at_first);
  ASSERT_EQ(all.size(), 1001u);
  for (int64_t i = 0; i < 1001; ++i) EXPECT_EQ(all[static_cast<size_t>(i)], i * i);
}

TEST(Generate, NoneIsFine) {
  EXPECT_TRUE(generated({.count = 0, .threads = 4}, [](int64_t i) { return i; }).empty());
}

TEST(Generate, WhatATaskOrTheSinkThrowsArrives) {
  const auto fails = [](int64_t i) {
    if (i == 300) throw std::runtime_error("no example");
    return i;
  };
  EXPECT_THROW(generated({.count = 1000, .threads = 3}, fails), std::runtime_error);
  const auto full = [](int64_t) { throw std::runtime_error("disk full"); };
  EXPECT_THROW(generate_in_order(
                   {.count = 1000, .threads = 3}, [](int64_t i) { return i; }, full),
               std::runtime_error);
}

TEST(Generate, ANegativeCountOrNoThreadIsAnError) {
  EXPECT_THROW(generated({.count = -1}, [](int64_t i) { return i; }), std::invalid_argument);
  EXPECT_THROW(generated({.count = 1, .threads = 0}, [](int64_t i) { return i; }),
               std::invalid_argument);
}

}  // namespace
}  // namespace fmmformer::tasks
