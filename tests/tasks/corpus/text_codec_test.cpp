// SPDX-License-Identifier: Apache-2.0
#include "tasks/corpus/text_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fmmformer::tasks {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

Vocabulary words() { return Vocabulary::of_words({"<eos>", "the", "cat", "<unk>", "\x1B[2J"}); }

std::string written(const Vocabulary& vocabulary, std::initializer_list<int64_t> tokens) {
  TextWriter writer(vocabulary);
  std::string text;
  for (const int64_t token : tokens) text += writer.add(token);
  return text;
}

TEST(TextCodec, WordsAreCutAtSpaceAndAnEndOfLineIsAToken) {
  EXPECT_THAT(encoded("the  cat\n\tthe\n\ncat", words()).tokens, ElementsAre(1, 2, 0, 1, 0, 0, 2));
  EXPECT_THAT(encoded("the\n", words()).tokens, ElementsAre(1, 0));
  EXPECT_THAT(encoded(" ", words()).tokens, IsEmpty());
}

TEST(TextCodec, UnknownWordsAreToldOnceAndReadAsTheirStandIn) {
  const EncodedText text = encoded("the dog saw the dog", words());
  EXPECT_THAT(text.tokens, ElementsAre(1, 3, 3, 1, 3));
  EXPECT_THAT(text.unknown, ElementsAre("dog", "saw"));
  // Without a stand-in they cannot be read at all.
  const EncodedText without = encoded("a cat", Vocabulary::of_words({"<eos>", "cat"}));
  EXPECT_THAT(without.tokens, ElementsAre(1));
  EXPECT_THAT(without.unknown, ElementsAre("a"));
}

TEST(TextCodec, BytesAreThemselves) {
  const EncodedText text = encoded("a\n\xC3\xA9", Vocabulary::of_bytes());
  EXPECT_THAT(text.tokens, ElementsAre(97, 10, 0xC3, 0xA9));
  EXPECT_THAT(text.unknown, IsEmpty());
  EXPECT_EQ(written(Vocabulary::of_bytes(), {97, 10, 0xC3, 0xA9, 9}), "a\n\xC3\xA9\t");
}

TEST(TextCodec, WordsAreWrittenWithASpaceBetweenThemAndNoneAtTheBeginOfALine) {
  EXPECT_EQ(written(words(), {1, 2, 0, 2, 1, 0, 0, 1}), "the cat\ncat the\n\nthe");
}

TEST(TextCodec, NothingThatATerminalWouldObeyIsWritten) {
  EXPECT_EQ(written(words(), {4}), "\\x1b[2J");
  EXPECT_EQ(written(Vocabulary::of_bytes(), {0x1B, '[', 7}), "\\x1b[\\x07");
}

}  // namespace
}  // namespace fmmformer::tasks
