// SPDX-License-Identifier: Apache-2.0
#include "tasks/corpus/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/temporary_folder.h"
#include "tasks/data_files.h"

namespace fmmformer::tasks {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const char* const kName = "valid.fmmtokens";
constexpr size_t kHeader = 48;

Vocabulary vocabulary_of(int size) {
  std::vector<std::string> words;
  for (int i = 0; i < size; ++i) words.push_back(std::to_string(i));
  return Vocabulary::of_words(std::move(words));
}

void write(const TemporaryFolder& folder, const Vocabulary& words,
           const std::vector<uint32_t>& tokens) {
  write_token_file(folder.path(), Split::kValid, words, packed_tokens(tokens, words));
}
std::string open_error(const TemporaryFolder& folder, const Vocabulary& words,
                       Split split = Split::kValid) {
  return error_of([&] { TokenFile(folder.path(), split, words); });
}

TEST(TokenFile, GivesBackWhatWasWrittenInAsFewBytesAsTheVocabularyNeeds) {
  const std::pair<int, size_t> widths[] = {{256, 1}, {257, 2}, {65536, 2}, {65537, 4}};
  for (const auto& [size, width] : widths) {
    const TemporaryFolder folder;
    const Vocabulary words = vocabulary_of(size);
    const auto last = static_cast<uint32_t>(size - 1);
    write(folder, words, {0, last, 7, 1});
    EXPECT_EQ(std::filesystem::file_size(folder / kName), kHeader + 4 * width);
    const TokenFile file(folder.path(), Split::kValid, words);
    file.check();
    ASSERT_EQ(file.tokens(), 4);
    std::vector<int64_t> read(3);
    file.read(1, read);
    EXPECT_THAT(read, ElementsAre(size - 1, 7, 1));
    EXPECT_THAT(error_of([&] { file.read(2, read); }), HasSubstr("damaged"));
    EXPECT_THAT(error_of([&] { file.read(-1, read); }), HasSubstr("damaged"));
  }
}

TEST(TokenFile, CheckNoticesADamageOfAnyByte) {
  const TemporaryFolder folder;
  const Vocabulary words = vocabulary_of(300);
  write(folder, words, {1, 2, 299});
  const std::string whole = read_file(folder / kName);
  for (size_t i = 0; i < whole.size(); ++i) {
    for (const int flipped : {0x01, 0x80, 0xFF}) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ flipped);
      write_file(folder / kName, damaged);
      const std::string error =
          error_of([&] { TokenFile(folder.path(), Split::kValid, words).check(); });
      EXPECT_THAT(error, AllOf(HasSubstr(kName), HasSubstr("import"))) << "byte " << i;
    }
  }
}

TEST(TokenFile, OpeningNoticesAFileThatIsCutOffOrHasMoreAtItsEnd) {
  const TemporaryFolder folder;
  const Vocabulary words = vocabulary_of(300);
  write(folder, words, {1, 2, 299});
  const std::string whole = read_file(folder / kName);
  for (size_t size = 0; size < whole.size(); ++size) {
    write_file(folder / kName, whole.substr(0, size));
    EXPECT_THAT(open_error(folder, words), AllOf(HasSubstr(kName), HasSubstr("import"))) << size;
  }
  write_file(folder / kName, whole + "x");
  EXPECT_THAT(open_error(folder, words), HasSubstr("damaged"));
}

TEST(TokenFile, OfAnotherVocabularyIsRefused) {
  const TemporaryFolder folder;
  write(folder, vocabulary_of(5), {1, 2, 3});
  EXPECT_THAT(
      open_error(folder, vocabulary_of(6)),
      AllOf(HasSubstr("another vocabulary (of 5 tokens)"), HasSubstr("vocabulary.txt' (6)")));
  const Vocabulary same_size = Vocabulary::of_words({"0", "1", "2", "4", "3"});
  EXPECT_THAT(open_error(folder, same_size),
              AllOf(HasSubstr("another vocabulary"), HasSubstr("import all splits together")));
}

TEST(TokenFile, OfAnotherVersionOrSplitOrMissingIsToBeImported) {
  const TemporaryFolder folder;
  const Vocabulary words = vocabulary_of(5);
  EXPECT_THAT(open_error(folder, words),
              AllOf(HasSubstr("there is no"), HasSubstr("data import wikitext")));
  write(folder, words, {1});
  std::filesystem::copy(folder / kName, folder / "test.fmmtokens");
  EXPECT_THAT(open_error(folder, words, Split::kTest),
              HasSubstr("holds the split valid; wanted is test"));
  std::string other = read_file(folder / kName);
  other[8] = 9;
  write_file(folder / kName, other);
  EXPECT_THAT(open_error(folder, words), HasSubstr("format version 9, this program reads 1"));
}

TEST(TokenFile, ATokenOutsideTheVocabularyIsAnErrorEvenWithoutACheck) {
  const TemporaryFolder folder;
  const Vocabulary words = vocabulary_of(5);
  write(folder, words, {1, 200});
  const TokenFile file(folder.path(), Split::kValid, words);
  std::vector<int64_t> read(2);
  EXPECT_THAT(error_of([&] { file.read(0, read); }), HasSubstr("damaged"));
}

TEST(TokenFile, NothingIsWrittenWithoutTokens) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { write(folder, vocabulary_of(5), {}); }), HasSubstr("no tokens"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace fmmformer::tasks
