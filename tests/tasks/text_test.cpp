// SPDX-License-Identifier: Apache-2.0
#include "tasks/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/temporary_folder.h"
#include "tasks/data_files.h"

namespace fmmformer::tasks {
namespace {

using testing::AllOf;
using testing::HasSubstr;

CacheWriter read_text(const TemporaryFolder& folder, std::string_view table) {
  write_file(folder / "x.tsv", table);
  return read_source(kTextData, {.path = folder / "x.tsv"});
}
std::string error_in_text(const TemporaryFolder& folder, std::string_view table) {
  return error_of([&] { read_text(folder, table); });
}

TEST(Text, ReadsATableWhoseTextsMayHaveTabs) {
  const TemporaryFolder folder;
  const CacheWriter set =
      read_text(folder, "0\tneg/0_3\tBad.<br />Very\tbad.\n1\tpos/0_9\t  caf\xC3\xA9 \t\n");
  ASSERT_EQ(set.examples(), 2);
  EXPECT_EQ(set.document(0), "Bad.<br />Very\tbad.");
  EXPECT_EQ(set.example(0).label, 0);
  EXPECT_EQ(set.document(1), "caf\xC3\xA9");
  EXPECT_EQ(set.example(1).label, 1);
}

TEST(Text, AFolderOfReviewsGivesTheSameAsItsTable) {
  const TemporaryFolder folder;
  write_file(folder / "r/neg/10_2.txt", "b");
  write_file(folder / "r/neg/9_4.txt", " a\n");
  write_file(folder / "r/pos/0_9.txt", "c\nd");
  write_file(folder / "r/pos/labeledBow.feat", "no review");
  const CacheWriter set = read_source(kTextData, {.path = folder / "r"});
  ASSERT_EQ(set.examples(), 3);
  EXPECT_EQ(set.document(0), "a");  // by number, not by name
  EXPECT_EQ(set.document(1), "b");
  EXPECT_EQ(set.document(2), "c\nd");
  EXPECT_EQ(set.example(1).label, 0);
  EXPECT_EQ(set.example(2).label, 1);
}

TEST(Text, ATokenIsAByteAndOne) {
  const TemporaryFolder folder;
  read_text(folder, "1\tx\tA\xC3\xA9z\n").write(folder.path(), TaskName::kText, Split::kTest);
  const TextTask task({.data = folder.path(), .length = 8, .bytes = 3}, 1);
  const Batch batch = task.batch({.split = Split::kTest});
  EXPECT_THAT(batch.tokens, testing::ElementsAre(66, 0xC4, 0xAA, 0, 0, 0, 0, 0));
  EXPECT_THAT(batch.token_mask, testing::ElementsAre(1, 1, 1, 0, 0, 0, 0, 0));
  EXPECT_THAT(batch.targets, testing::ElementsAre(1));
  EXPECT_EQ(task.token_text(66), "A");
  EXPECT_EQ(task.token_text(0xC4), "\\xc3");
  EXPECT_EQ(task.token_text(0), "");
}

TEST(Text, BadLinesAreErrorsWithFileAndLine) {
  const TemporaryFolder folder;
  const std::string good = "0\ta\ttext\n";
  const auto at_line_2 = [](const char* what) {
    return AllOf(HasSubstr("x.tsv:2: "), HasSubstr(what));
  };
  EXPECT_THAT(error_in_text(folder, good + "1\tb\n"), at_line_2("label TAB id TAB text"));
  EXPECT_THAT(error_in_text(folder, good + "2\tb\ttext\n"), at_line_2("label '2', allowed: 0..1"));
  EXPECT_THAT(error_in_text(folder, good + "pos\tb\ttext\n"), at_line_2("label 'pos'"));
  EXPECT_THAT(error_in_text(folder, good + "1\tb\t \n"), at_line_2("empty"));
  EXPECT_THAT(error_in_text(folder, good + "1\tb\tcaf\xE9\n"),
              AllOf(at_line_2("byte 8 of the line is not UTF-8"), HasSubstr("iconv")));
  EXPECT_THAT(error_in_text(folder, good + "1\tb\tcut o"), at_line_2("cut off"));
}

TEST(Text, BadFoldersAreErrorsThatNameTheFile) {
  const TemporaryFolder folder;
  const auto error = [&] { return read_error(kTextData, {.path = folder / "r"}); };
  write_file(folder / "r/neg/0_1.txt", "a");
  EXPECT_THAT(error(), HasSubstr("r/pos"));
  std::filesystem::create_directories(folder / "r/pos");
  EXPECT_THAT(error(), HasSubstr("no .txt files"));
  write_file(folder / "r/pos/0_9.txt", "\xE9t\xE9");
  EXPECT_THAT(error(), AllOf(HasSubstr("0_9.txt"), HasSubstr("UTF-8")));
  write_file(folder / "r/pos/0_9.txt", "\n");
  EXPECT_THAT(error(), AllOf(HasSubstr("0_9.txt"), HasSubstr("empty")));
}

TEST(Text, HasThePapersSizes) {
  const TextTask task(TaskConfig().text, 1);
  EXPECT_EQ(task.length(), 4096);
  EXPECT_EQ(task.vocabulary(), 512);
  EXPECT_EQ(task.classes(), 2);
  EXPECT_FALSE(task.is_pair());
  EXPECT_THROW(TextTask({.length = 1000, .bytes = 1001}, 1), std::invalid_argument);
}

}  // namespace
}  // namespace fmmformer::tasks
