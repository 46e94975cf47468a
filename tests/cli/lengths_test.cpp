// SPDX-License-Identifier: Apache-2.0
#include "cli/lengths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fmmformer::cli {
namespace {

using testing::ElementsAre;

TEST(Lengths, ARangeDoubles) {
  EXPECT_THAT(parse_lengths("512..4096"), ElementsAre(512, 1024, 2048, 4096));
  EXPECT_THAT(parse_lengths("3..13"), ElementsAre(3, 6, 12));
}

TEST(Lengths, AListIsTakenAsItIs) {
  EXPECT_THAT(parse_lengths("100,7"), ElementsAre(100, 7));
  EXPECT_THAT(parse_lengths("2048"), ElementsAre(2048));
}

TEST(Lengths, EverythingElseIsAnErrorThatShowsTheValue) {
  for (const auto* text :
       {"", "0", "-4", "512..", "..512", "a..b", "512...1024", "1024..512", "1,,2", "12x"}) {
    try {
      parse_lengths(text);
      ADD_FAILURE() << text;
    } catch (const std::invalid_argument& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(std::string("'").append(text).append("'")));
    }
  }
}

}  // namespace
}  // namespace fmmformer::cli
