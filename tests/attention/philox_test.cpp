// SPDX-License-Identifier: Apache-2.0
#include "attention/philox.h"

#include <gmock/gmock.h>

#include <set>
#include <tuple>

namespace fmmformer {
namespace {

using testing::ElementsAre;

// The known answers that Random123, the generator's home, publishes.
TEST(Philox, GivesTheKnownAnswers) {
  EXPECT_THAT(philox_block({{0, 0, 0, 0}}, 0, 0).word,
              ElementsAre(0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48));
  EXPECT_THAT(
      philox_block({{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}}, 0xffffffff, 0xffffffff).word,
      ElementsAre(0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662));
  EXPECT_THAT(
      philox_block({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0).word,
      ElementsAre(0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a));
}

TEST(Philox, ThresholdIsTheShareOfAllWords) {
  EXPECT_EQ(dropout_threshold(0.0), 0u);
  EXPECT_EQ(dropout_threshold(0.5), 0x80000000u);
}

TEST(NearDropout, ThresholdIsTheShareOfFifteenBitsAndTheFactorItsOwn) {
  EXPECT_EQ(near_dropout_threshold(0.0), 0u);
  EXPECT_EQ(near_dropout_threshold(0.5), 0x4000u);
  EXPECT_EQ(near_dropout_threshold(0.1), 3277u);
  EXPECT_EQ(near_dropout_factor(0.0), 1.0);
  EXPECT_EQ(near_dropout_factor(0.5), 2.0);
  EXPECT_NEAR(near_dropout_factor(0.1), 1 / 0.9, 1e-5);
}

TEST(NearDropout, KeepsSomethingHoweverMuchIsDropped) {
  EXPECT_EQ(near_dropout_threshold(0.9999999), 32767u);
  EXPECT_EQ(near_dropout_factor(0.9999999), 32768.0);
}

TEST(NearDropout, EveryProbabilityHasBitsOfItsOwn) {
  std::set<std::tuple<uint32_t, uint32_t, uint32_t, uint32_t>> places;
  for (uint32_t i = 0; i < 48; ++i) {
    for (uint32_t j = 0; j < 48; ++j) {
      const PhiloxBlock counter = near_dropout_counter(i, j, 3);
      EXPECT_THAT(counter.word, ElementsAre(testing::_, testing::_, 3, 0));
      places.insert({counter.word[0], counter.word[1], near_dropout_word(i, j), j % 2});
    }
  }
  EXPECT_EQ(places.size(), 48u * 48u);
}

}  // namespace
}  // namespace fmmformer
