// SPDX-License-Identifier: Apache-2.0
#include "tasks/corpus/words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace fmmformer::tasks {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  for (auto word = next_word(text); !word.empty(); word = next_word(text)) words.emplace_back(word);
  EXPECT_TRUE(text.empty());
  return words;
}

TEST(Words, AreWhatStandsBetweenWhiteSpace) {
  EXPECT_THAT(words_of(" = Robert <unk> =\t1 @,@ 000 \r"),
              ElementsAre("=", "Robert", "<unk>", "=", "1", "@,@", "000"));
  EXPECT_THAT(words_of(""), IsEmpty());
  EXPECT_THAT(words_of(" \t \v\f\r"), IsEmpty());
}

TEST(Words, ArePartedByUnicodesWhiteSpaceToo) {
  for (const char* space :
       {"\x1C", "\x1F", "\xC2\x85", "\xC2\xA0", "\xE1\x9A\x80", "\xE2\x80\x80", "\xE2\x80\x8A",
        "\xE2\x80\xA8", "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80"}) {
    const std::string text = std::string(space) + "a" + space + space + "b" + space;
    EXPECT_THAT(words_of(text), ElementsAre("a", "b")) << text;
  }
}

TEST(Words, KeepCharactersThatOnlyLookLikeSpaceByTheirFirstBytes) {
  for (const char* word : {"caf\xC3\xA9", "\xC2\xA3", "\xE2\x80\x93", "\xE2\x80\x8B",
                           "\xE3\x80\x81", "\xE1\x9A\x81", "\xE2\x82\xAC", "x\xC2"}) {
    EXPECT_THAT(words_of(word), ElementsAre(word));
  }
}

TEST(Words, AreShownWithoutBytesThatATerminalObeys) {
  EXPECT_EQ(readable_word("caf\xC3\xA9"), "caf\xC3\xA9");
  EXPECT_EQ(readable_word("\x1B[2J\x7F"), "\\x1b[2J\\x7f");
}

}  // namespace
}  // namespace fmmformer::tasks
