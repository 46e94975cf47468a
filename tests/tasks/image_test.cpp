// SPDX-License-Identifier: Apache-2.0
#include "tasks/image.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/temporary_folder.h"
#include "tasks/data/grey_image.h"
#include "tasks/data_files.h"

namespace fmmformer::tasks {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string repeated(int byte, int64_t count = kPixels) {
  return std::string(static_cast<size_t>(count), static_cast<char>(byte));
}

CacheWriter read_image(const TemporaryFolder& folder, std::string_view records) {
  write_file(folder / "x.bin", records);
  return read_source(kImageData, {.path = folder / "x.bin"});
}
std::string error_in_image(const TemporaryFolder& folder, std::string_view records) {
  return error_of([&] { read_image(folder, records); });
}

TEST(Image, ReadsGreyRecords) {
  const TemporaryFolder folder;
  const CacheWriter set = read_image(folder, record(3, repeated(7)) + record(9, repeated(255)));
  ASSERT_EQ(set.examples(), 2);
  EXPECT_EQ(set.example(0).label, 3);
  EXPECT_EQ(set.document(0), repeated(7));
  EXPECT_EQ(set.example(1).label, 9);
  EXPECT_EQ(set.document(1), repeated(255));
}

TEST(Image, TurnsColourRecordsIntoGrey) {
  const TemporaryFolder folder;
  const CacheWriter set =
      read_image(folder, record(1, repeated(10) + repeated(200) + repeated(30)));
  ASSERT_EQ(set.examples(), 1);
  EXPECT_EQ(set.example(0).label, 1);
  EXPECT_EQ(set.document(0), repeated(grey_of(10, 200, 30)));
}

// By hand: 0.2989 * 10 + 0.5870 * 200 + 0.1140 * 30 = 123.809, times 255.5 / 255 = 124.05.
TEST(Image, GreyIsTheWeightedSumStretchedByAHalfAndCutOff) {
  EXPECT_EQ(grey_of(10, 200, 30), 124);
  EXPECT_EQ(grey_of(0, 0, 0), 0);
  EXPECT_EQ(grey_of(255, 255, 255), 255);  // 255.47
  EXPECT_EQ(grey_of(255, 0, 0), 76);       // 76.37
  EXPECT_EQ(grey_of(0, 255, 0), 149);      // 149.98: not rounded
  EXPECT_EQ(grey_of(0, 0, 255), 29);       // 29.13
  for (int value = 0; value < 256; ++value) {
    const auto grey = static_cast<uint8_t>(value);
    EXPECT_NEAR(grey_of(grey, grey, grey), value, 1);
  }
}

TEST(Image, BadRecordsAreErrorsThatNameTheFileAndTheRecord) {
  const TemporaryFolder folder;
  const std::string good = record(3, repeated(7));
  EXPECT_THAT(error_in_image(folder, good + record(10, repeated(7))),
              AllOf(HasSubstr("x.bin, record 1 "), HasSubstr("label 10, allowed: 0..9")));
  EXPECT_THAT(error_in_image(folder, record(255, repeated(7, 3 * kPixels))),
              HasSubstr("label 255"));
  EXPECT_THAT(error_in_image(folder, good.substr(0, 1000)),
              AllOf(HasSubstr("x.bin: 1000 bytes"), HasSubstr("cut off")));
  EXPECT_THAT(error_in_image(folder, record(3, repeated(7, 28 * 28))), HasSubstr("another size"));
  EXPECT_THAT(error_in_image(folder, ""), HasSubstr("x.bin: 0 bytes"));
}

TEST(Image, BlackIsMaskedAsPublishedOrSeenLikeAnyOtherGrey) {
  const TemporaryFolder folder;
  read_image(folder, record(3, repeated(0, 2) + repeated(255, kPixels - 2)))
      .write(folder.path(), TaskName::kImage, Split::kTest);
  const BatchRequest request{.split = Split::kTest};
  const Batch published = ImageTask({.data = folder.path()}, 1).batch(request);
  EXPECT_EQ(published.tokens[1], 0);
  EXPECT_EQ(published.token_mask[1], 0);
  EXPECT_EQ(published.tokens[2], 255);
  EXPECT_EQ(published.token_mask[2], 1);
  const Batch all =
      ImageTask({.data = folder.path(), .mask_black_pixels = false}, 1).batch(request);
  EXPECT_EQ(all.tokens[1], 1);
  EXPECT_EQ(all.tokens[2], 256);
  EXPECT_THAT(all.token_mask, testing::Each(1));
}

TEST(Image, HasThePapersSizes) {
  const ImageTask task(TaskConfig().image, 1);
  EXPECT_EQ(task.length(), 1024);
  EXPECT_EQ(task.vocabulary(), 512);
  EXPECT_EQ(task.classes(), 10);
}

}  // namespace
}  // namespace fmmformer::tasks
