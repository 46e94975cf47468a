// SPDX-License-Identifier: Apache-2.0
#include "tasks/data/byte_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/temporary_folder.h"
#include "tasks/data_files.h"

namespace fmmformer::tasks {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::vector<std::string> lines_of(const std::filesystem::path& path) {
  std::vector<std::string> lines;
  LineReader reader(path);
  while (const auto line = reader.next()) lines.emplace_back(*line);
  return lines;
}

// Long enough to be read in several pieces, and not easy to pack.
std::string long_text() {
  std::string text;
  for (int i = 0; i < 300'000; ++i) text += std::to_string(i * 7919L % 1'000'003) + "\n";
  return text;
}

TEST(ByteSource, GivesTheSameBytesPlainAndPacked) {
  const TemporaryFolder folder;
  const std::string text = long_text();
  write_file(folder / "a.tsv", text);
  write_file(folder / "a.tsv.xz", packed_xz(text));
  write_file(folder / "a.tsv.gz", packed_gz(text));
  for (const char* name : {"a.tsv", "a.tsv.xz", "a.tsv.gz"}) {
    EXPECT_EQ(read_whole(folder / name), text) << name;
  }
}

TEST(ByteSource, ReadsPackedFilesThatWereJoined) {
  const TemporaryFolder folder;
  write_file(folder / "a.xz", packed_xz("one\n") + packed_xz("two\n"));
  write_file(folder / "a.gz", packed_gz("one\n") + packed_gz("two\n"));
  EXPECT_EQ(read_whole(folder / "a.xz"), "one\ntwo\n");
  EXPECT_EQ(read_whole(folder / "a.gz"), "one\ntwo\n");
}

TEST(ByteSource, APackedFileThatIsCutOffIsAnErrorWhereverTheCutIs) {
  const TemporaryFolder folder;
  const std::string text = "a line of text\nand another one\n";
  for (const auto& [name, whole] :
       {std::pair{"a.xz", packed_xz(text)}, std::pair{"a.gz", packed_gz(text)}}) {
    for (size_t size = 1; size < whole.size(); ++size) {
      write_file(folder / name, whole.substr(0, size));
      EXPECT_THAT(error_of([&] { read_whole(folder / name); }),
                  AllOf(HasSubstr(name), HasSubstr("get the file again")))
          << size;
    }
  }
}

TEST(ByteSource, ADamagedPackedFileIsAnErrorThatNamesTheFile) {
  const TemporaryFolder folder;
  const std::string text = long_text();
  for (const auto& [name, whole] :
       {std::pair{"a.xz", packed_xz(text)}, std::pair{"a.gz", packed_gz(text)}}) {
    std::string damaged = whole;
    damaged[damaged.size() / 2] ^= 1;
    write_file(folder / name, damaged);
    EXPECT_THAT(error_of([&] { read_whole(folder / name); }),
                AllOf(HasSubstr(name), HasSubstr("damaged")));
    write_file(folder / name, "a page that says: not found");
    EXPECT_THAT(error_of([&] { read_whole(folder / name); }),
                AllOf(HasSubstr(name), HasSubstr("is no ")));
  }
}

TEST(ByteSource, AFileThatCannotBeReadIsAnErrorThatSaysWhy) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { read_whole(folder / "none"); }), HasSubstr("No such file"));
  EXPECT_THAT(error_of([&] { read_whole(folder.path()); }), HasSubstr("directory"));
}

TEST(LineReader, GivesLinesWithoutTheirEnds) {
  const TemporaryFolder folder;
  write_file(folder / "a", "one\r\n\ntwo\rtwo\nlast");
  EXPECT_THAT(lines_of(folder / "a"), testing::ElementsAre("one", "", "two\rtwo", "last"));
  write_file(folder / "b", "");
  EXPECT_THAT(lines_of(folder / "b"), testing::IsEmpty());
}

TEST(LineReader, ReadsLinesThatAreLongerThanItsBuffer) {
  const TemporaryFolder folder;
  const std::string line(3'000'000, 'x');
  write_file(folder / "a", "short\n" + line + "\nshort\n");
  EXPECT_THAT(lines_of(folder / "a"), testing::ElementsAre("short", line, "short"));
}

TEST(LineReader, KnowsTheNumberOfALineAndWhetherTheLastHasAnEnd) {
  const TemporaryFolder folder;
  write_file(folder / "a", "one\ntwo\nthree");
  LineReader reader(folder / "a");
  reader.next();
  reader.next();
  EXPECT_THAT(error_of([&] { reader.fail("wrong"); }), testing::EndsWith("a:2: wrong"));
  EXPECT_FALSE(reader.ended_inside_a_line());
  reader.next();
  EXPECT_TRUE(reader.ended_inside_a_line());
}

TEST(LineReader, AFileThatIsNoTextIsAnErrorRatherThanOneEndlessLine) {
  const TemporaryFolder folder;
  write_file(folder / "a", std::string(70 << 20, 'x'));
  EXPECT_THAT(error_of([&] { lines_of(folder / "a"); }), HasSubstr("no text file"));
}

}  // namespace
}  // namespace fmmformer::tasks
