// SPDX-License-Identifier: Apache-2.0
#include "tasks/fetch/unpack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/temporary_folder.h"
#include "tasks/fetch/archive.h"
#include "tasks/fetch/archive_files.h"
#include "tasks/fetch/folder_contents.h"

namespace fmmformer::tasks::fetch {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::UnorderedElementsAre;

const Selection kSelection = {"set", {"train.tsv", "imgs/"}};

class UnpackTest : public testing::Test {
 protected:
  Unpacked unpack_bytes(const std::string& bytes, const Selection& selection = kSelection) {
    write_file(archives_ / "archive", bytes);
    return unpack(archives_ / "archive", selection, folder_.path(),
                  {.on_progress = [&](const Progress& now) { last_ = now; }});
  }
  std::string error_of(const std::string& bytes) {
    try {
      unpack_bytes(bytes);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "nothing was thrown";
  }
  std::map<std::string, std::string> files() const { return files_in(folder_.path()); }

  TemporaryFolder archives_, folder_;
  Progress last_;
};

std::string good_tar() {
  return tar_member("release/set/", "", '5') + tar_member("release/set/train.tsv", "a\tb\n") +
         tar_member("release/set/imgs/0/1.png", "picture") +
         tar_member("release/set/imgs/0/2.png", std::string(100'000, 'p')) +
         tar_member("release/set/other.tsv", "not wanted") + tar_end();
}

std::string good_zip() {
  return zip_file({{.path = "set/"},
                   {.path = "set/train.tsv", .content = "a\tb\n", .stored = true},
                   {.path = "set/imgs/0/1.png", .content = "picture"},
                   {.path = "set/imgs/0/2.png", .content = std::string(100'000, 'p')},
                   {.path = "set/other.tsv", .content = "not wanted"}});
}

const std::map<std::string, std::string> kGoodFiles = {
    {"set/train.tsv", "a\tb\n"},
    {"set/imgs/0/1.png", "picture"},
    {"set/imgs/0/2.png", std::string(100'000, 'p')}};

TEST_F(UnpackTest, TakesWhatIsWantedFromTarGzipAndZip) {
  for (const std::string& archive : {good_tar(), gzip(good_tar()), good_zip()}) {
    const Unpacked unpacked = unpack_bytes(archive);
    EXPECT_EQ(files(), kGoodFiles);
    EXPECT_EQ(unpacked.folder, folder_ / "set");
    EXPECT_EQ(unpacked.files, 3);
    EXPECT_EQ(unpacked.bytes, 4 + 7 + 100'000);
    EXPECT_FALSE(unpacked.was_there);
    EXPECT_EQ(last_.phase, Phase::kUnpack);
    EXPECT_EQ(last_.total, std::ssize(archive));
    std::filesystem::remove_all(folder_ / "set");
  }
}

TEST_F(UnpackTest, TheFolderMayLieAnywhereInTheArchive) {
  for (const char* before : {"", "./", "a/b/", "/", "set/"}) {
    unpack_bytes(gzip(tar_member(std::string(before) + "set/train.tsv", "text") + tar_end()),
                 {"set", {"train.tsv"}});
    EXPECT_THAT(files(), ElementsAre(Pair("set/train.tsv", "text"))) << before;
    std::filesystem::remove_all(folder_ / "set");
  }
}

TEST_F(UnpackTest, LongNamesOfGnuAndOfPaxAreUnderstood) {
  const std::string long_name = "imgs/" + std::string(150, 'n') + "/1.png";
  const std::string gnu = tar_member("././@LongLink", "set/" + long_name + '\0', 'L') +
                          tar_member("set/cut off", "gnu") + tar_end();
  const std::string pax =
      tar_member("PaxHeaders/1",
                 pax_record("mtime", "1.5") + pax_record("path", "set/" + long_name), 'x') +
      tar_member("set/cut off", "pax") + tar_end();
  for (const auto& [archive, content] : {std::pair{gnu, "gnu"}, {pax, "pax"}}) {
    unpack_bytes(gzip(archive), {"set", {"imgs/"}});
    EXPECT_THAT(files(), ElementsAre(Pair("set/" + long_name, content)));
    std::filesystem::remove_all(folder_ / "set");
  }
}

TEST_F(UnpackTest, LeavesOutWhatMacOsAddsToArchives) {
  unpack_bytes(gzip(tar_member("set/._train.tsv", "junk") + tar_member("set/imgs/._1.png", "junk") +
                    good_tar()));
  EXPECT_EQ(files(), kGoodFiles);
}

TEST_F(UnpackTest, AMemberThatLeadsOutOfItsFolderIsRefused) {
  for (const char* path :
       {"set/imgs/../../../evil", "a/../set/imgs/../train.tsv", "../set/train.tsv"}) {
    EXPECT_THAT(error_of(gzip(good_tar().substr(0, 512) + tar_member(path, "evil") + tar_end())),
                AllOf(HasSubstr(path), HasSubstr("leads out of its folder")));
    EXPECT_THAT(error_of(zip_file({{.path = path, .content = "evil"}})),
                HasSubstr("leads out of its folder"));
    EXPECT_THAT(files(), IsEmpty());
  }
  EXPECT_FALSE(std::filesystem::exists(folder_.path().parent_path() / "evil"));
}

TEST_F(UnpackTest, LinksInPlaceOfFilesAreRefused) {
  EXPECT_THAT(error_of(gzip(tar_member("set/imgs/1.png", "", '2') + tar_end())),
              AllOf(HasSubstr("set/imgs/1.png"), HasSubstr("is a link")));
  EXPECT_THAT(error_of(zip_file({{.path = "set/train.tsv", .content = "/etc", .mode = 0120777}})),
              HasSubstr("is a link"));
  EXPECT_THAT(files(), IsEmpty());
}

TEST_F(UnpackTest, AnArchiveThatLacksSomethingIsNamedWithWhatItLacks) {
  const std::string text = error_of(gzip(tar_member("set/train.tsv", "text") + tar_end()));
  EXPECT_THAT(text, AllOf(HasSubstr("cannot unpack"), HasSubstr("archive'"),
                          HasSubstr("it holds no set/imgs/"), HasSubstr("fetch it again")));
  EXPECT_THAT(files(), IsEmpty());
}

TEST_F(UnpackTest, AnArchiveThatIsCutAnywhereIsAnErrorAndLeavesNothing) {
  for (const std::string& archive : {gzip(good_tar()), good_zip(), good_tar()}) {
    const size_t step = archive.size() / 60 + 1;
    // Without the last block of zeros a plain tar is whole all the same.
    const size_t end = archive == good_tar() ? archive.size() - 1024 : archive.size();
    for (size_t size = 0; size < end; size += step) {
      EXPECT_THAT(error_of(archive.substr(0, size)), HasSubstr("cannot unpack")) << size;
    }
  }
  EXPECT_THAT(files(), IsEmpty());
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(UnpackTest, ADamagedByteIsNoticedOrHarmless) {
  for (const std::string& archive : {gzip(good_tar()), good_zip()}) {
    int noticed = 0;
    for (size_t i = 0; i < archive.size(); i += 3) {
      std::string damaged = archive;
      damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
      try {
        unpack_bytes(damaged);
        EXPECT_TRUE(files() == kGoodFiles) << i;
        std::filesystem::remove_all(folder_ / "set");
      } catch (const std::runtime_error&) {
        ++noticed;
        EXPECT_THAT(files(), IsEmpty()) << i;
      }
    }
    EXPECT_GT(noticed, std::ssize(archive) / 9);  // the rest: dates, and what stands there twice
  }
}

TEST_F(UnpackTest, AFileThatIsNoArchiveIsAnError) {
  EXPECT_THAT(error_of("<html>not here</html>"), HasSubstr("neither a zip nor a tar"));
  EXPECT_THAT(error_of(""), HasSubstr("neither a zip nor a tar"));
  EXPECT_THAT(error_of(gzip("only text")), HasSubstr("ends too early"));
  EXPECT_THAT(error_of(gzip(std::string(600, 'x'))), HasSubstr("header is damaged"));
}

TEST_F(UnpackTest, AFolderThatIsThereIsLeftAlone) {
  unpack_bytes(gzip(good_tar()));
  write_file(folder_ / "set/train.tsv", "mine");
  EXPECT_TRUE(unpack_bytes(gzip(good_tar())).was_there);
  EXPECT_EQ(read_file(folder_ / "set/train.tsv"), "mine");
  std::filesystem::remove(folder_ / "set/train.tsv");
  EXPECT_THAT(error_of(gzip(good_tar())),
              AllOf(HasSubstr("is there already and lacks train.tsv"), HasSubstr("move it away")));
}

TEST_F(UnpackTest, WhatAKilledRunLeftIsReplaced) {
  write_file(folder_ / "set.part/imgs/stale.png", "stale");
  unpack_bytes(gzip(good_tar()));
  EXPECT_EQ(files(), kGoodFiles);
}

}  // namespace
}  // namespace fmmformer::tasks::fetch
