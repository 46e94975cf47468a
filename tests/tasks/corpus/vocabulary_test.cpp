// SPDX-License-Identifier: Apache-2.0
#include "tasks/corpus/vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/temporary_folder.h"
#include "tasks/data_files.h"

namespace fmmformer::tasks {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

Vocabulary small() { return Vocabulary::of_words({"<eos>", "the", "caf\xC3\xA9", "\x1B[2J"}); }
std::string error_in(const TemporaryFolder& folder) {
  return error_of([&] { Vocabulary::read(folder.path()); });
}

TEST(Vocabulary, GivesAWordsTokenAndATokensWord) {
  const Vocabulary words = small();
  EXPECT_EQ(words.size(), 4);
  EXPECT_EQ(words.find("<eos>"), 0);
  EXPECT_EQ(words.find("caf\xC3\xA9"), 2);
  EXPECT_EQ(words.find("The"), std::nullopt);
  EXPECT_EQ(words.text(1), "the");
  EXPECT_EQ(words.text(3), "\\x1b[2J");
  EXPECT_EQ(words.text(4), "?");
  EXPECT_EQ(words.text(-1), "?");
}

TEST(Vocabulary, OfBytesHasThemAll) {
  const Vocabulary bytes = Vocabulary::of_bytes();
  EXPECT_EQ(bytes.size(), 256);
  EXPECT_EQ(bytes.find("A"), 65);
  EXPECT_EQ(bytes.find("\xFF"), 255);
  EXPECT_EQ(bytes.find("AB"), std::nullopt);
  EXPECT_EQ(bytes.text(65), "A");
  EXPECT_EQ(bytes.text(10), "\\x0a");
  EXPECT_EQ(bytes.text(0xC3), "\\xc3");
}

TEST(Vocabulary, IsATextFileAndReadAgainTheSame) {
  const TemporaryFolder folder;
  small().write(folder.path());
  EXPECT_THAT(read_file(folder / "vocabulary.txt"),
              AllOf(StartsWith("fmmformer-vocabulary 1 word 4 "), HasSubstr("\n<eos>\nthe\n")));
  const Vocabulary again = Vocabulary::read(folder.path());
  EXPECT_THAT(again.words(), ElementsAre("<eos>", "the", "caf\xC3\xA9", "\x1B[2J"));
  EXPECT_EQ(again.fingerprint(), small().fingerprint());
  Vocabulary::of_bytes().write(folder.path());
  EXPECT_EQ(Vocabulary::read(folder.path()).level(), TextLevel::kByte);
}

TEST(Vocabulary, AnyOtherWordOrOrderHasAnotherFingerprint) {
  EXPECT_NE(small().fingerprint(),
            Vocabulary::of_words({"<eos>", "caf\xC3\xA9", "the", "\x1B[2J"}).fingerprint());
  EXPECT_NE(Vocabulary::of_words({}).fingerprint(), Vocabulary::of_bytes().fingerprint());
  EXPECT_THROW(Vocabulary::of_words({"<eos>", "a", "a"}), std::logic_error);
}

TEST(Vocabulary, ADamageOfAnyByteOrACutIsNoticed) {
  const TemporaryFolder folder;
  small().write(folder.path());
  const std::string whole = read_file(folder / "vocabulary.txt");
  for (size_t i = 0; i < whole.size(); ++i) {
    for (const int flipped : {0x01, 0x2A, 0x80}) {  // 0x2A makes a blank an end of line
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ flipped);
      write_file(folder / "vocabulary.txt", damaged);
      EXPECT_THAT(error_in(folder), AllOf(HasSubstr("vocabulary.txt"), HasSubstr("import")))
          << "byte " << i;
    }
    write_file(folder / "vocabulary.txt", whole.substr(0, i));
    EXPECT_THAT(error_in(folder), AllOf(HasSubstr("vocabulary.txt"), HasSubstr("import"))) << i;
  }
  write_file(folder / "vocabulary.txt", whole + "x\n");
  EXPECT_THAT(error_in(folder), HasSubstr("damaged"));
}

TEST(Vocabulary, OfAnotherVersionOrMissingItIsToBeImported) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_in(folder), AllOf(HasSubstr("there is no"), HasSubstr("data import wikitext"),
                                      HasSubstr("task.wikitext.data")));
  write_file(folder / "vocabulary.txt", "fmmformer-vocabulary 2 piece 1 0\nx\n");
  EXPECT_THAT(error_in(folder), HasSubstr("format version 2, this program reads 1"));
  write_file(folder / "vocabulary.txt", "the\nof\n");
  EXPECT_THAT(error_in(folder), HasSubstr("is no vocabulary of fmmformer"));
}

}  // namespace
}  // namespace fmmformer::tasks
