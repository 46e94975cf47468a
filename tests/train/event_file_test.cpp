// SPDX-License-Identifier: Apache-2.0
// What TensorBoard makes of these files is tested in read_event_file.py.
#include "train/event_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "core/temporary_folder.h"
#include "fmmformer/core/crc32c.h"

namespace fmmformer::train {
namespace {

template <typename Number>
Number number_at(const std::string& bytes, size_t offset) {
  Number number;
  std::memcpy(&number, bytes.data() + offset, sizeof(number));
  return number;
}

/// The data of every record, its checksums checked.
std::vector<std::string> records_in(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  const std::string bytes = text.str();
  std::vector<std::string> records;
  size_t offset = 0;
  while (offset < bytes.size()) {
    const auto length = number_at<uint64_t>(bytes, offset);
    EXPECT_EQ(number_at<uint32_t>(bytes, offset + 8), masked_crc(crc32c(bytes.substr(offset, 8))));
    records.push_back(bytes.substr(offset + 12, length));
    EXPECT_EQ(number_at<uint32_t>(bytes, offset + 12 + length), masked_crc(crc32c(records.back())));
    offset += 12 + length + 4;
  }
  return records;
}

TEST(EventFile, BeginsWithItsVersion) {
  const TemporaryFolder folder;
  const EventFile file(folder / "events");
  const auto records = records_in(file.path());
  ASSERT_EQ(records.size(), 1U);
  EXPECT_EQ(records[0].substr(9),
            "\x1A\x0D"
            "brain.Event:2");
  EXPECT_THAT(file.path().filename().string(), testing::StartsWith("events.out.tfevents."));
}

TEST(EventFile, AScalarIsWrittenAtOnceAsTensorBoardsProtocolBuffer) {
  const TemporaryFolder folder;
  EventFile file(folder.path());
  file.scalar("loss", 300, 0.5);
  const auto records = records_in(file.path());
  ASSERT_EQ(records.size(), 2U);
  // After the wall time: step = 300 as a varint, then summary { value { tag, simple_value } }.
  EXPECT_EQ(records[1].substr(9),
            std::string("\x10\xAC\x02\x2A\x0D\x0A\x0B\x0A\x04loss\x15\x00\x00\x00\x3F", 18));
}

TEST(EventFile, FilesOfOneFolderSortInTheOrderOfTheirMaking) {
  const TemporaryFolder folder;
  std::vector<std::string> names;
  for (int i = 0; i < 4; ++i) names.push_back(EventFile(folder.path(), 5).path().filename());
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  EXPECT_EQ(std::unique(names.begin(), names.end()), names.end());
}

}  // namespace
}  // namespace fmmformer::train
