// SPDX-License-Identifier: Apache-2.0
#include "tasks/data/columns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/temporary_folder.h"
#include "tasks/data/folder.h"
#include "tasks/data_files.h"

namespace fmmformer::tasks {
namespace {

TEST(Columns, ALabelIsAWholeNumberBelowTheClasses) {
  EXPECT_EQ(label_of("0", 2), 0);
  EXPECT_EQ(label_of("1", 2), 1);
  EXPECT_EQ(label_of("1.0", 2), 1);
  for (const char* wrong : {"", "2", "-1", "0.5", "1 ", " 1", "x", "nan", "inf", "1e9", "0x1"}) {
    EXPECT_EQ(label_of(wrong, 2), std::nullopt) << wrong;
  }
}

TEST(Columns, Utf8IsKnownFromOtherBytes) {
  const auto is_utf8 = [](std::string_view text) {
    return first_byte_not_utf8(text) == text.size();
  };
  for (const char* good :
       {"", "plain", "caf\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_TRUE(is_utf8(good)) << good;
  }
  // Latin-1, a lone tail, a cut character, too long a form, half of a pair, beyond the last.
  for (const char* bad :
       {"caf\xE9", "caf\xE9 au", "\x80", "\xE2\x82", "\xC0\xAF", "\xE0\x80\xAF", "\xF0\x80\x80\xAF",
        "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF"}) {
    EXPECT_FALSE(is_utf8(bad)) << testing::PrintToString(bytes_of(bad));
  }
  EXPECT_EQ(first_byte_not_utf8("caf\xE9"), 3U);
}

TEST(Columns, WhiteSpaceAroundATextIsTakenOff) {
  EXPECT_EQ(stripped(" \t\r\n\v\f a b \n"), "a b");
  EXPECT_EQ(stripped(" \n"), "");
  EXPECT_EQ(stripped("\xC2\xA0x"), "\xC2\xA0x");  // of UTF-8, nothing else is
}

TEST(Folder, FilesComeByTheNumberTheirNamesBeginWith) {
  const TemporaryFolder folder;
  for (const char* name :
       {"10_1.txt", "9_8.txt", "9_10.txt", "0.txt", "b.txt", "a.txt", "1.feat"}) {
    write_file(folder / name, "");
  }
  std::vector<std::string> names;
  for (const auto& file : files_in(folder.path(), ".txt")) names.push_back(file.filename());
  EXPECT_THAT(names,
              testing::ElementsAre("0.txt", "9_10.txt", "9_8.txt", "10_1.txt", "a.txt", "b.txt"));
  EXPECT_THAT(error_of([&] { files_in(folder / "none", ".txt"); }), testing::HasSubstr("none"));
}

}  // namespace
}  // namespace fmmformer::tasks
