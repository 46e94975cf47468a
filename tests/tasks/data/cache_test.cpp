// SPDX-License-Identifier: Apache-2.0
#include "tasks/data/cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "core/temporary_folder.h"
#include "tasks/data_files.h"

namespace fmmformer::tasks {
namespace {

using testing::AllOf;
using testing::HasSubstr;

CacheWriter small_set() {
  CacheWriter set;
  set.add("first", 3);
  set.add("", 0);
  set.add(std::string("\0\xFF", 2), 9);
  set.add_example({.label = 1, .first = 2, .second = 0});
  return set;
}

const char* const kName = "valid.fmmdata";
void write_small(const TemporaryFolder& folder) {
  small_set().write(folder.path(), TaskName::kText, Split::kValid);
}
std::string open_error(const TemporaryFolder& folder) {
  return error_of([&] { DataCache(folder.path(), TaskName::kText, Split::kValid); });
}

TEST(DataCache, GivesBackWhatWasWritten) {
  const TemporaryFolder folder;
  write_small(folder);
  const DataCache cache(folder.path(), TaskName::kText, Split::kValid);
  const CacheWriter set = small_set();
  ASSERT_EQ(cache.documents(), 3);
  ASSERT_EQ(cache.examples(), 4);
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(cache.document(i), set.document(i));
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(cache.example(i), set.example(i));
  cache.check();
}

TEST(DataCache, ASubsetHasItsExamplesInOrderWithTheDocumentsThatTheyNeed) {
  const std::vector<uint32_t> wanted = {3, 0};
  const CacheWriter part = small_set().subset(wanted);
  ASSERT_EQ(part.examples(), 2);
  EXPECT_EQ(part.documents(), 2);  // the first is shared, the empty one not needed
  EXPECT_EQ(part.example(0), (Example{.label = 1, .first = 0, .second = 1}));
  EXPECT_EQ(part.document(0), std::string("\0\xFF", 2));
  EXPECT_EQ(part.example(1), (Example{.label = 3, .first = 1}));
  EXPECT_EQ(part.document(1), "first");
}

TEST(DataCache, CheckNoticesADamageOfAnyByte) {
  const TemporaryFolder folder;
  write_small(folder);
  const std::string whole = read_file(folder / kName);
  for (size_t i = 0; i < whole.size(); ++i) {
    for (const int flipped : {0x01, 0x80, 0xFF}) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ flipped);
      write_file(folder / kName, damaged);
      const std::string error =
          error_of([&] { DataCache(folder.path(), TaskName::kText, Split::kValid).check(); });
      EXPECT_THAT(error, AllOf(HasSubstr(kName), HasSubstr("import"))) << "byte " << i;
    }
  }
}

TEST(DataCache, OpeningNoticesAFileThatIsCutOffOrHasMoreAtItsEnd) {
  const TemporaryFolder folder;
  write_small(folder);
  const std::string whole = read_file(folder / kName);
  for (size_t size = 0; size < whole.size(); ++size) {
    write_file(folder / kName, whole.substr(0, size));
    EXPECT_THAT(open_error(folder), AllOf(HasSubstr(kName), HasSubstr("import"))) << size;
  }
  write_file(folder / kName, whole + "x");
  EXPECT_THAT(open_error(folder), HasSubstr("damaged"));
  std::string miscounted = whole;
  miscounted[48]++;  // examples
  write_file(folder / kName, miscounted);
  EXPECT_THAT(open_error(folder), HasSubstr("counts do not fit"));
}

TEST(DataCache, AFileOfAnotherVersionIsToBeImportedAgain) {
  const TemporaryFolder folder;
  write_small(folder);
  std::string whole = read_file(folder / kName);
  whole[8] = 7;
  write_file(folder / kName, whole);
  EXPECT_THAT(open_error(folder), AllOf(HasSubstr(kName), HasSubstr("version 7"),
                                        HasSubstr("reads 1"), HasSubstr("import it again")));
}

TEST(DataCache, AFileOfAnotherTaskOrSplitIsRefused) {
  const TemporaryFolder folder;
  write_small(folder);
  const auto as = [&](TaskName task, Split split) {
    return error_of([&] { DataCache(folder.path(), task, split); });
  };
  EXPECT_THAT(as(TaskName::kImage, Split::kValid),
              AllOf(HasSubstr("holds text, valid; wanted is image, valid"),
                    HasSubstr("fmmformer data import image")));
  std::filesystem::rename(folder / kName, folder / "test.fmmdata");
  EXPECT_THAT(as(TaskName::kText, Split::kTest), HasSubstr("wanted is text, test"));
}

TEST(DataCache, AFileSaysWhichSplitItHoldsWhateverItsName) {
  const TemporaryFolder folder;
  write_small(folder);
  std::filesystem::rename(folder / kName, folder / "mine.fmmdata");
  EXPECT_EQ(split_of_file(folder / "mine.fmmdata"), Split::kValid);
  std::filesystem::resize_file(folder / "mine.fmmdata", 20);
  for (const char* name : {"mine.fmmdata", "none.fmmdata"}) {
    EXPECT_THAT(error_of([&] { split_of_file(folder / name); }),
                AllOf(HasSubstr(name), HasSubstr("is no data file")));
  }
}

TEST(DataCache, AMissingFileIsAnErrorThatSaysHowToMakeIt) {
  const TemporaryFolder folder;
  EXPECT_THAT(open_error(folder), AllOf(HasSubstr(kName), HasSubstr("fmmformer data import text"),
                                        HasSubstr("task.text.data")));
}

TEST(DataCache, CountsThatOverflowAreNoticed) {
  const TemporaryFolder folder;
  write_small(folder);
  std::string whole = read_file(folder / kName);
  // 2^61 further documents would need 2^64 bytes for their offsets: nothing, in 64 bits.
  uint64_t documents;
  std::memcpy(&documents, whole.data() + 40, sizeof(documents));
  ASSERT_EQ(documents, 3U);
  documents += uint64_t{1} << 61;
  std::memcpy(whole.data() + 40, &documents, sizeof(documents));
  write_file(folder / kName, whole);
  EXPECT_THAT(open_error(folder), HasSubstr("damaged"));
}

TEST(DataCache, OffsetsThatLeadOutsideAreAnErrorEvenWithoutACheck) {
  const TemporaryFolder folder;
  write_small(folder);
  std::string whole = read_file(folder / kName);
  whole[72 + 8 + 3] = 1;  // where the first document ends
  write_file(folder / kName, whole);
  const DataCache cache(folder.path(), TaskName::kText, Split::kValid);
  EXPECT_THAT(error_of([&] { (void)cache.document(0); }), HasSubstr("damaged"));
  EXPECT_THAT(error_of([&] { (void)cache.document(3); }), HasSubstr("damaged"));
  EXPECT_THAT(error_of([&] { (void)cache.example(4); }), HasSubstr("damaged"));
}

TEST(DataCache, NothingIsWrittenWithoutExamples) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { CacheWriter().write(folder.path(), TaskName::kText, Split::kTrain); }),
              HasSubstr("no examples"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace fmmformer::tasks
