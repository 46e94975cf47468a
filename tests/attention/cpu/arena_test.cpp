// SPDX-License-Identifier: Apache-2.0
#include "attention/cpu/arena.h"

#include <gtest/gtest.h>

namespace fmmformer::cpu {
namespace {

TEST(Arena, HandsOutAlignedArraysThatDoNotOverlap) {
  Arena arena;
  float* first = arena.take<float>(3);
  float* second = arena.take<float>(3);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(second) % 64, 0u);
  EXPECT_GE(second, first + 3 + 16);  // a vector may be read beyond the end
}

TEST(Arena, KeepsItsMemoryOverAReset) {
  Arena arena;
  float* before = arena.take<float>(100);
  arena.reset();
  EXPECT_EQ(arena.take<float>(100), before);
}

TEST(Arena, GrowsForArraysLargerThanABlock) {
  Arena arena;
  double* large = arena.take_zeros<double>(1 << 20);
  EXPECT_EQ(large[(1 << 20) - 1], 0.0);
}

TEST(Arena, RequestsThatGrowALittleShareABlock) {
  Arena arena;
  float* before = arena.take<float>((1 << 19) + 1);  // beyond 2 MiB: a block of three
  arena.reset();
  EXPECT_EQ(arena.take<float>((1 << 19) + 1000), before);
}

}  // namespace
}  // namespace fmmformer::cpu
