// SPDX-License-Identifier: Apache-2.0
#include "tasks/listops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/temporary_folder.h"
#include "tasks/data_files.h"

namespace fmmformer::tasks {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

CacheWriter read_listops(const TemporaryFolder& folder, std::string_view table) {
  write_file(folder / "x.tsv", table);
  return read_source(kListopsData, {.path = folder / "x.tsv"});
}
std::string error_in_listops(const TemporaryFolder& folder, std::string_view table) {
  return error_of([&] { read_listops(folder, table); });
}

TEST(Listops, TokensAreNumberedDigitsThenOperatorsThenTheClosingBracket) {
  EXPECT_THAT(bytes_of(listops_tokens("[MIN [MAX [MED [SM 0 1 2 3 4 5 6 7 8 9 ] ] ] ]")),
              ElementsAre(11, 12, 13, 14, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 15, 15, 15));
}

TEST(Listops, ReadsTheOfficialFormWithRoundBracketsAndCarriageReturns) {
  const TemporaryFolder folder;
  const CacheWriter set = read_listops(folder,
                                       "Source\tTarget\r\n"
                                       "( ( ( ( [MAX 2 ) 9 ) ( ( ( [MIN 4 ) 7 ) ] ) ) ] )\t9\r\n"
                                       "( ( ( [SM 5 ) 6 ) ] )\t1\r\n");
  ASSERT_EQ(set.examples(), 2);
  EXPECT_EQ(set.document(0), listops_tokens("[MAX 2 9 [MIN 4 7 ] ]"));
  EXPECT_EQ(set.example(0).label, 9);
  EXPECT_THAT(bytes_of(set.document(1)), ElementsAre(14, 6, 7, 15));
  EXPECT_EQ(set.example(1).label, 1);
}

TEST(Listops, ReadsTheFormWithoutRoundBracketsWithOrWithoutAHead) {
  const TemporaryFolder folder;
  EXPECT_EQ(read_listops(folder, "Source\tTarget\n[SM 5 6 ]\t1\n").examples(), 1);
  EXPECT_EQ(read_listops(folder, "[SM 5 6 ]\t1\n[MED 1 2 ]\t1\n").examples(), 2);
}

TEST(Listops, BadLinesAreErrorsWithFileAndLine) {
  const TemporaryFolder folder;
  const std::string good = "Source\tTarget\n[SM 5 6 ]\t1\n";
  const auto at_line_3 = [](const char* what) {
    return AllOf(HasSubstr("x.tsv:3: "), Not(ContainsRegex("x.tsv:3.*x.tsv:3")), HasSubstr(what));
  };
  EXPECT_THAT(error_in_listops(folder, good + "[SM 5 6 ]\n"), at_line_3("Source TAB Target"));
  EXPECT_THAT(error_in_listops(folder, good + "[SM 5 6 ]\t1\t2\n"), at_line_3("has 3 columns"));
  EXPECT_THAT(error_in_listops(folder, good + "\n"), at_line_3("has 1 column,"));
  EXPECT_THAT(error_in_listops(folder, good + "[SM 5 6 ]\t10\n"),
              at_line_3("label '10', allowed: 0..9"));
  EXPECT_THAT(error_in_listops(folder, good + "[SM 5 6 ]\t\n"), at_line_3("label ''"));
  EXPECT_THAT(error_in_listops(folder, good + "[AVG 5 6 ]\t1\n"), at_line_3("'[AVG' is no word"));
  EXPECT_THAT(error_in_listops(folder, good + "[SM 55 6 ]\t1\n"), at_line_3("'55' is no word"));
  EXPECT_THAT(error_in_listops(folder, good + "[SM \xFF 6 ]\t1\n"), at_line_3("'?' is no word"));
  EXPECT_THAT(error_in_listops(folder, good + "[SM 5 6\t1\n"), at_line_3("does not close"));
  EXPECT_THAT(error_in_listops(folder, good + "[SM 5 ] ] [SM\t1\n"), at_line_3("does not close"));
  EXPECT_THAT(error_in_listops(folder, good + "( )\t1\n"), at_line_3("is empty"));
}

TEST(Listops, AFileThatIsCutOffIsAnError) {
  const TemporaryFolder folder;
  const std::string whole = "Source\tTarget\n[SM 5 6 ]\t1\n";
  for (size_t size = 15; size < whole.size(); ++size) {
    EXPECT_THAT(error_in_listops(folder, whole.substr(0, size)), HasSubstr("x.tsv:2: ")) << size;
  }
}

TEST(Listops, HasThePapersSizes) {
  const ListopsTask task({}, 1);
  EXPECT_EQ(task.length(), 2048);
  EXPECT_EQ(task.vocabulary(), 32);
  EXPECT_EQ(task.classes(), 10);
  EXPECT_EQ(task.token_text(0), "");
  EXPECT_EQ(task.token_text(12), "[MAX");
}

}  // namespace
}  // namespace fmmformer::tasks
