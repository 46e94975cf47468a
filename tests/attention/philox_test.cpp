// SPDX-License-Identifier: Apache-2.0
#include "attention/philox.h"

#include <gmock/gmock.h>

namespace fmmformer {
namespace {

using testing::ElementsAre;

// The known answers that Random123, the generator's home, publishes.
TEST(Philox, GivesTheKnownAnswers) {
  EXPECT_THAT(philox_block({{0, 0, 0, 0}}, 0, 0).word,
              ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  EXPECT_THAT(
      philox_block({{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}}, 0xffffffff, 0xffffffff).word,
      ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(
      philox_block({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0).word,
      ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(Philox, ThresholdIsTheShareOfAllWords) {
  EXPECT_EQ(dropout_threshold(0.0), 0u);
  EXPECT_EQ(dropout_threshold(0.5), 0x80000000u);
}

}  // namespace
}  // namespace fmmformer
