// SPDX-License-Identifier: Apache-2.0
#include "cli/data_fetch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/fetch_progress.h"
#include "core/temporary_folder.h"
#include "tasks/fetch/archive_files.h"
#include "tasks/fetch/folder_contents.h"
#include "tasks/fetch/http_server.h"

namespace fmmformer::cli {
namespace {

using namespace tasks::fetch;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

std::string output_of(const std::vector<std::string>& arguments) {
  testing::internal::CaptureStdout();
  try {
    EXPECT_EQ(run_data_fetch({"fmmformer data fetch", arguments, "build/fmmformer"}), kDone);
  } catch (...) {
    testing::internal::GetCapturedStdout();
    throw;
  }
  return testing::internal::GetCapturedStdout();
}

/// Like the real release of LRA, for which no checksum is published.
std::string small_release() {
  const std::string top = "lra_release/lra_release/";
  std::string tar;
  for (const char* split : {"train", "val", "test"}) {
    tar += tar_member(top + "listops-1000/basic_" + split + ".tsv", "Source\tTarget\r\n");
  }
  tar += tar_member(top + "pathfinder32/curv_contour_length_14/imgs/0/sample_0.png", "png");
  tar += tar_member(top + "pathfinder32/curv_contour_length_14/metadata/0.npy", "text");
  tar += tar_member(top + "pathfinder32/curv_baseline/metadata/0.npy", "easy");
  return gzip(tar + tar_end());
}

TEST(DataFetch, BringsVerifiesAndUnpacksAndSaysWhatComesNext) {
  setenv("no_proxy", "127.0.0.1", 1);
  const std::string release = small_release();
  const HttpServer server(
      [&](const Request& request, const Connection& to) { to.serve(request, release); });
  const TemporaryFolder folder;
  const std::string out = (folder / "downloads").string();
  const std::string text =
      output_of({"listops", "pathfinder", "--out", out, "--mirror", server.address("/sets")});
  EXPECT_THAT(text, AllOf(HasSubstr(server.address("/sets/lra_release.gz")),
                          HasSubstr("(recorded: none is published to compare with)"),
                          HasSubstr(out + "/listops-1000, 45 B in 3 files"), HasSubstr("cite"),
                          HasSubstr("Next:\n  build/fmmformer data import listops " + out +
                                    "/listops-1000\n  build/fmmformer data import pathfinder " +
                                    out + "/pathfinder32/curv_contour_length_14\n")));
  EXPECT_EQ(server.requests().size(), 1u);  // one archive serves both
  EXPECT_TRUE(std::filesystem::exists(
      folder / "downloads/pathfinder32/curv_contour_length_14/imgs/0/sample_0.png"));
  EXPECT_FALSE(std::filesystem::exists(folder / "downloads/pathfinder32/curv_baseline"));

  EXPECT_THAT(output_of({"listops", "--out", out}),
              AllOf(HasSubstr("lra_release.gz"), HasSubstr("was there"),
                    HasSubstr("(as at the first fetch)")));
}

TEST(DataFetch, ListsWhatThereIs) {
  EXPECT_THAT(output_of({"--list"}),
              AllOf(HasSubstr("listops"), HasSubstr("wikitext-103"),
                    HasSubstr("cifar-10-binary.tar.gz, 170.1 MB"), HasSubstr("CC BY-SA 3.0"),
                    HasSubstr("not published; that of the first fetch is recorded")));
}

TEST(DataFetch, ATaskThatIsUnknownIsAnErrorBeforeAnythingIsFetched) {
  EXPECT_THAT(
      [] {
        output_of({"listops", "pathfindr"});
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("did you mean 'pathfinder'?")));
  EXPECT_THAT([] { output_of({}); }, ThrowsMessage<UsageError>(HasSubstr("--list")));
}

TEST(DataFetch, WithoutANetworkItSaysWhichFileToBringWhere) {
  const TemporaryFolder folder;
  setenv("https_proxy", "http://127.0.0.1:1", 1);  // nothing listens there
  EXPECT_THAT(
      [&] {
        output_of({"image", "--out", folder.path().string()});
      },
      ThrowsMessage<std::runtime_error>(
          AllOf(HasSubstr("https://www.cs.toronto.edu/"),
                HasSubstr("to '" + (folder / "cifar-10-binary.tar.gz").string() + "'"),
                HasSubstr("c4a38c50a1bc5f3a"))));
  unsetenv("https_proxy");
}

TEST(FetchProgress, ShowsSizeRateAndWhatIsLeft) {
  EXPECT_EQ(fetch_progress_text("a.gz", {Phase::kDownload, 1'200'000'000, 8'200'000'000}, 35e6),
            "a.gz  1.2 GB of 8.2 GB  35.0 MB/s  3 min 20 s left");
  EXPECT_EQ(fetch_progress_text("a.gz", {Phase::kDownload, 500, 0}, 0), "a.gz  500 B");
  EXPECT_EQ(fetch_progress_text("a.gz", {Phase::kVerify, 10, 10}, 0),
            "checking a.gz  10 B of 10 B");
  EXPECT_EQ(fetch_progress_text("a.gz", {Phase::kUnpack, 2000, 4000}, 1000),
            "unpacking a.gz  2.0 kB of 4.0 kB  1.0 kB/s  2.0 s left");
}

}  // namespace
}  // namespace fmmformer::cli
