// SPDX-License-Identifier: Apache-2.0
#include "tasks/retrieval.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/temporary_folder.h"
#include "tasks/data_files.h"

namespace fmmformer::tasks {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kDocuments = "P1\tfirst paper\nP2\tsecond\tpaper\nP3\tcaf\xC3\xA9\n";

CacheWriter read_retrieval(const TemporaryFolder& folder, std::string_view pairs,
                           std::string_view documents = "") {
  write_file(folder / "pairs.tsv", pairs);
  if (!documents.empty()) write_file(folder / "docs.tsv", documents);
  return read_source(kRetrievalData, {.path = folder / "pairs.tsv",
                                      .documents = documents.empty() ? "" : folder / "docs.tsv"});
}
std::string error_in_retrieval(const TemporaryFolder& folder, std::string_view pairs,
                               std::string_view documents = "") {
  return error_of([&] { read_retrieval(folder, pairs, documents); });
}

TEST(Retrieval, ReadsLrasTableAsItStands) {
  const TemporaryFolder folder;
  const CacheWriter set = read_retrieval(folder,
                                         "1.0\tP1\tP2\tb'a\\n\\xe9'\tb\"it's\"\n"
                                         "0.0\tP2\tP3\tb\"it's\"\t\xE9\n");  // any byte is one
  ASSERT_EQ(set.examples(), 2);
  EXPECT_EQ(set.example(0), (Example{.label = 1, .first = 0, .second = 1}));
  EXPECT_EQ(set.example(1), (Example{.label = 0, .first = 1, .second = 2}));
  EXPECT_EQ(set.document(0), "b'a\\n\\xe9'");
  EXPECT_EQ(set.document(1), "b\"it's\"");
  EXPECT_EQ(set.document(2), "\xE9");
}

TEST(Retrieval, ReadsPairsOfIdsWithATableOfDocuments) {
  const TemporaryFolder folder;
  const CacheWriter set = read_retrieval(folder, "1\tP3\tP1\n0\tP1\tP3\n1\tP1\tP1\n", kDocuments);
  ASSERT_EQ(set.examples(), 3);
  EXPECT_EQ(set.documents(), 2);  // each once, and only those that a pair needs
  EXPECT_EQ(set.document(set.example(0).first), "caf\xC3\xA9");
  EXPECT_EQ(set.document(set.example(0).second), "first paper");
  EXPECT_EQ(set.example(2), (Example{.label = 1, .first = 1, .second = 1}));
}

TEST(Retrieval, TheFirst4000BytesOfADocumentCount) {
  const TemporaryFolder folder;
  const std::string text(4000, 'x');
  const CacheWriter set =
      read_retrieval(folder, "1\tP1\tP2\n", "P1\t" + text + "tail\nP2\t" + text + "another tail\n");
  EXPECT_EQ(set.documents(), 1);  // what counts of them is the same
  EXPECT_EQ(set.document(0), text);
}

TEST(Retrieval, ABatchHasBothDocuments) {
  const TemporaryFolder folder;
  read_retrieval(folder, "1\tP1\tP2\n0\tP2\tP1\n", "P1\tab\nP2\tc\n")
      .write(folder.path(), TaskName::kRetrieval, Split::kValid);
  const RetrievalTask task({.data = folder.path(), .length = 3, .bytes = 3}, 1);
  EXPECT_TRUE(task.is_pair());
  const Batch batch = task.batch({.split = Split::kValid, .size = 2});
  EXPECT_TRUE(batch.is_pair());
  EXPECT_THAT(batch.tokens, testing::ElementsAre('a' + 1, 'b' + 1, 0, 'c' + 1, 0, 0));
  EXPECT_THAT(batch.token_mask, testing::ElementsAre(1, 1, 0, 1, 0, 0));
  EXPECT_THAT(batch.other_tokens, testing::ElementsAre('c' + 1, 0, 0, 'a' + 1, 'b' + 1, 0));
  EXPECT_THAT(batch.other_token_mask, testing::ElementsAre(1, 0, 0, 1, 1, 0));
  EXPECT_THAT(batch.targets, testing::ElementsAre(1, 0));
}

TEST(Retrieval, BadLinesAreErrorsWithFileAndLine) {
  const TemporaryFolder folder;
  const std::string good = "1\tP1\tP2\n";
  const auto at_line_2 = [](const char* what) {
    return AllOf(HasSubstr("pairs.tsv:2: "), HasSubstr(what));
  };
  EXPECT_THAT(error_in_retrieval(folder, good + "1\tP1\n", kDocuments),
              at_line_2("label TAB id1 TAB id2"));
  EXPECT_THAT(error_in_retrieval(folder, good + "1\tP1\tP2\ttext\n", kDocuments),
              at_line_2("4 columns"));
  EXPECT_THAT(error_in_retrieval(folder, good + "2\tP1\tP2\n", kDocuments), at_line_2("label '2'"));
  EXPECT_THAT(error_in_retrieval(folder, good + "1\tP1\tP9\n", kDocuments),
              AllOf(at_line_2("'P9' is not in"), HasSubstr("docs.tsv")));
  EXPECT_THAT(error_in_retrieval(folder, good + "1\tP1\tP2", kDocuments), at_line_2("cut off"));
  EXPECT_THAT(error_in_retrieval(folder, good),
              AllOf(HasSubstr("pairs.tsv:1: "), HasSubstr("--documents")));
}

TEST(Retrieval, BadDocumentsAreErrorsWithFileAndLine) {
  const TemporaryFolder folder;
  const std::string pairs = "1\tP1\tP1\n", good = "P1\ttext\n";
  const auto at_line_2 = [](const char* what) {
    return AllOf(HasSubstr("docs.tsv:2: "), HasSubstr(what));
  };
  EXPECT_THAT(error_in_retrieval(folder, pairs, good + "P2\n"), at_line_2("id TAB text"));
  EXPECT_THAT(error_in_retrieval(folder, pairs, good + "P1\ttext\n"), at_line_2("second time"));
  EXPECT_THAT(error_in_retrieval(folder, pairs, good + "P2\tcaf\xE9\n"), at_line_2("not UTF-8"));
  EXPECT_THAT(error_in_retrieval(folder, pairs, good + "P2\tcut o"), at_line_2("cut off"));
}

TEST(Retrieval, HasThePapersSizes) {
  const RetrievalTask task(TaskConfig().retrieval, 1);
  EXPECT_EQ(task.length(), 4096);
  EXPECT_EQ(task.vocabulary(), 512);
  EXPECT_EQ(task.classes(), 2);
}

}  // namespace
}  // namespace fmmformer::tasks
