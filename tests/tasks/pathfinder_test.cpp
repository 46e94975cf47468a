// SPDX-License-Identifier: Apache-2.0
#include "tasks/pathfinder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <png.h>

#include "core/temporary_folder.h"
#include "tasks/data/grey_image.h"
#include "tasks/data_files.h"

namespace fmmformer::tasks {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Another one for every seed, with every grey value in it.
std::string picture(int seed) {
  std::string pixels;
  for (int i = 0; i < kPixels; ++i) pixels += static_cast<char>(i * (2 * seed + 1) + seed);
  return pixels;
}

/// A folder as LRA's: pictures imgs/0/sample_K.png, listed in metadata/0.npy.
struct Release {
  TemporaryFolder folder;

  Release() { std::filesystem::create_directories(folder / "imgs/0"); }
  std::string name(int k) const { return "sample_" + std::to_string(k) + ".png"; }
  void draw(int k) const { write_png(folder / ("imgs/0/" + name(k)), picture(k)); }
  void list(std::string_view lines) const { write_file(folder / "metadata/0.npy", lines); }
  CacheWriter read() const { return read_source(kPathfinderData, {.path = folder.path()}); }
  std::string error() const {
    return error_of([&] { read(); });
  }
};

TEST(Pathfinder, ReadsThePicturesThatTheMetadataList) {
  const Release release;
  release.draw(0);
  release.draw(1);
  release.list("imgs/0 sample_1.png 1 1 0 1.0 14 2\nimgs/0 sample_0.png 0 0 0 1.0 14 2\n");
  const CacheWriter set = release.read();
  ASSERT_EQ(set.examples(), 2);
  EXPECT_EQ(set.document(0), picture(1));
  EXPECT_EQ(set.example(0).label, 1);
  EXPECT_EQ(set.document(1), picture(0));
  EXPECT_EQ(set.example(1).label, 0);
}

TEST(Pathfinder, ListsComeByTheirNumbersAndEmptyPicturesAreLeftOut) {
  const Release release;
  release.draw(0);
  release.draw(1);
  write_file(release.folder / "imgs/0/sample_2.png", "");
  write_file(release.folder / "metadata/10.npy", "imgs/0 sample_1.png 1 1\n");
  write_file(release.folder / "metadata/9.npy",
             "imgs/0 sample_0.png 0 0\nimgs/0 sample_2.png 0 1\n");
  const CacheWriter set = release.read();
  ASSERT_EQ(set.examples(), 2);
  EXPECT_EQ(set.document(0), picture(0));
  EXPECT_EQ(set.document(1), picture(1));
}

TEST(Pathfinder, ReadsPackedRecords) {
  const TemporaryFolder folder;
  write_file(folder / "x.bin.xz", packed_xz(record(0, picture(3)) + record(1, picture(4))));
  const CacheWriter set = read_source(kPathfinderData, {.path = folder / "x.bin.xz"});
  ASSERT_EQ(set.examples(), 2);
  EXPECT_EQ(set.document(0), picture(3));
  EXPECT_EQ(set.example(1).label, 1);
  write_file(folder / "x.bin", record(2, picture(3)));
  EXPECT_THAT(read_error(kPathfinderData, {.path = folder / "x.bin"}),
              AllOf(HasSubstr("x.bin, record 0"), HasSubstr("label 2, allowed: 0..1")));
  write_file(folder / "x.bin", picture(3));
  EXPECT_THAT(read_error(kPathfinderData, {.path = folder / "x.bin"}), HasSubstr("cut off"));
}

TEST(Pathfinder, BadMetadataAreErrorsWithFileAndLine) {
  const Release release;
  release.draw(0);
  const std::string good = "imgs/0 sample_0.png 0 0\n";
  const auto at_line_2 = [](const char* what) {
    return AllOf(HasSubstr("0.npy:2: "), HasSubstr(what));
  };
  release.list(good + "imgs/0 sample_0.png 0\n");
  EXPECT_THAT(release.error(), at_line_2("FOLDER FILE NUMBER LABEL"));
  release.list(good + "imgs/0 sample_0.png 0 2\n");
  EXPECT_THAT(release.error(), at_line_2("label '2', allowed: 0..1"));
  release.list(good + "imgs/0 sample_7.png 0 1\n");
  EXPECT_THAT(release.error(), AllOf(at_line_2("sample_7.png"), HasSubstr("No such file")));
}

TEST(Pathfinder, BadPicturesAreErrorsThatNameThem) {
  const Release release;
  release.list("imgs/0 sample_0.png 0 0\n");
  const auto path = release.folder / "imgs/0/sample_0.png";
  write_png(path, picture(0), 2);
  EXPECT_THAT(release.error(), AllOf(HasSubstr("0.npy:1: "), HasSubstr("sample_0.png"),
                                     HasSubstr("64 x 64 in grey, wanted is 32 x 32")));
  write_file(path, "GIF89a");
  EXPECT_THAT(release.error(), AllOf(HasSubstr("sample_0.png"), HasSubstr("no PNG")));
  write_png(path, picture(0));
  const std::string whole = read_file(path);
  write_file(path, whole.substr(0, whole.size() / 2));
  EXPECT_THAT(release.error(), HasSubstr("sample_0.png"));
  png_image colour{.version = PNG_IMAGE_VERSION, .width = 32, .height = 32};
  colour.format = PNG_FORMAT_RGB;
  const std::string pixels(3 * kPixels, 'x');
  png_image_write_to_file(&colour, path.c_str(), 0, pixels.data(), 0, nullptr);
  EXPECT_THAT(release.error(), HasSubstr("in colour"));
}

TEST(Pathfinder, AFolderWithoutMetadataIsAnErrorThatSaysWhichIsMeant) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder / "metadata");
  EXPECT_THAT(read_error(kPathfinderData, {.path = folder.path()}),
              HasSubstr("curv_contour_length_14"));
}

TEST(Pathfinder, HasThePapersSizes) {
  const PathfinderTask task(TaskConfig().pathfinder, 1);
  EXPECT_EQ(task.length(), 1024);
  EXPECT_EQ(task.vocabulary(), 512);
  EXPECT_EQ(task.classes(), 2);
}

}  // namespace
}  // namespace fmmformer::tasks
