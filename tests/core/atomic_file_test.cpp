// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/core/atomic_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <fstream>
#include <functional>
#include <iterator>
#include <thread>
#include <vector>

#include "temporary_folder.h"

namespace fmmformer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string content(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

size_t files_in(const TemporaryFolder& folder) {
  std::filesystem::directory_iterator files(folder.path());
  return static_cast<size_t>(std::distance(begin(files), end(files)));
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "no error";
}

/// Files may not grow beyond `bytes` while this lives: how a full disk looks to a program, without
/// a disk to fill.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &old_limit_);
    old_handler_ = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{bytes, old_limit_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &old_limit_);
    std::signal(SIGXFSZ, old_handler_);
  }

 private:
  rlimit old_limit_{};
  void (*old_handler_)(int) = nullptr;
};

TEST(AtomicFile, WritesTheBytesAndLeavesNothingElse) {
  const TemporaryFolder folder;
  const std::string text("zero \0 inside", 13);
  write_file_atomically(folder / "a", std::string_view(text));
  EXPECT_EQ(content(folder / "a"), text);
  EXPECT_EQ(files_in(folder), 1u);
}

TEST(AtomicFile, ReplacesAnOldFile) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "a", "a long old content");
  write_file_atomically(folder / "a", "new");
  EXPECT_EQ(content(folder / "a"), "new");
}

TEST(AtomicFile, WritesAnEmptyFile) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "a", "");
  EXPECT_TRUE(std::filesystem::exists(folder / "a"));
  EXPECT_EQ(content(folder / "a"), "");
}

TEST(AtomicFile, JoinsPieces) {
  const TemporaryFolder folder;
  const std::string first = "one ", second, third = "two";
  const std::vector<std::span<const std::byte>> pieces = {std::as_bytes(std::span(first)),
                                                          std::as_bytes(std::span(second)),
                                                          std::as_bytes(std::span(third))};
  write_file_atomically(folder / "a", pieces);
  EXPECT_EQ(content(folder / "a"), "one two");
}

TEST(AtomicFile, WritesIntoTheCurrentFolder) {
  const TemporaryFolder folder;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  write_file_atomically("bare_name", "x");
  std::filesystem::current_path(before);
  EXPECT_EQ(content(folder / "bare_name"), "x");
}

TEST(AtomicFile, FullDiskKeepsTheOldFileAndRemovesTheTemporary) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "a", "old");
  const std::string large(100'000, 'x');
  const std::string error = error_of([&] {
    const FileSizeLimit limit(4096);
    write_file_atomically(folder / "a", large);
  });
  EXPECT_THAT(error, AllOf(HasSubstr((folder / "a").string()), HasSubstr("File too large"),
                           HasSubstr("another disk")));
  EXPECT_EQ(content(folder / "a"), "old");
  EXPECT_EQ(files_in(folder), 1u);
}

TEST(AtomicFile, MissingFolderIsNamedWithTheWayOut) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "missing" / "a";
  EXPECT_THAT(error_of([&] { write_file_atomically(path, "x"); }),
              AllOf(HasSubstr(path.string()), HasSubstr("No such file or directory"),
                    HasSubstr("create the folder first")));
}

TEST(AtomicFile, FolderAsTargetIsRefused) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_of([&] { write_file_atomically(folder.path(), "x"); }),
              HasSubstr("not of a folder"));
}

TEST(AtomicFile, DeviceAsTargetIsRefusedAndStaysADevice) {
  EXPECT_THAT(error_of([] { write_file_atomically("/dev/null", "x"); }), HasSubstr("device"));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST(AtomicFile, WritersAtTheSameTimeLeaveOneWholeFile) {
  const TemporaryFolder folder;
  std::vector<std::thread> writers;
  for (char letter = 'a'; letter < 'e'; ++letter) {
    writers.emplace_back([&folder, letter] {
      const std::string text(10'000, letter);
      for (int i = 0; i < 5; ++i) write_file_atomically(folder / "a", text);
    });
  }
  for (std::thread& writer : writers) writer.join();
  const std::string text = content(folder / "a");
  EXPECT_EQ(text, std::string(10'000, text.at(0)));
  EXPECT_EQ(files_in(folder), 1u);
}

}  // namespace
}  // namespace fmmformer
