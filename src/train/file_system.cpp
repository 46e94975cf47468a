// SPDX-License-Identifier: Apache-2.0
#include "train/file_system.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "fmmformer/core/way_out.h"

namespace fmmformer::train {

void fail_with_errno(std::string_view action, const std::filesystem::path& path, int error) {
  throw std::runtime_error("cannot " + std::string(action) + " '" + path.string() + "': " +
                           std::generic_category().message(error) + std::string(way_out(error)));
}

OpenFile::OpenFile(std::filesystem::path path, int flags) : path_(std::move(path)) {
  descriptor_ = open(path_.c_str(), flags | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail_with_errno("open", path_, errno);
}

OpenFile::OpenFile(OpenFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

OpenFile& OpenFile::operator=(OpenFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

OpenFile::~OpenFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

void OpenFile::append(std::span<const std::byte> bytes) {
  const uint64_t before = size();
  if (lseek(descriptor_, static_cast<off_t>(before), SEEK_SET) < 0) {
    fail_with_errno("write", path_, errno);
  }
  while (!bytes.empty()) {
    const ssize_t written = write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int error = errno;
      // Half a line would spoil the file for the next one. If even this fails there is nothing
      // better to say than the first error.
      [[maybe_unused]] const int cut = ftruncate(descriptor_, static_cast<off_t>(before));
      fail_with_errno("write", path_, error);
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void OpenFile::append(std::string_view text) { append(std::as_bytes(std::span(text))); }

void OpenFile::truncate(uint64_t bytes) {
  if (ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0) {
    fail_with_errno("shorten", path_, errno);
  }
}

void OpenFile::sync() {
  if (fsync(descriptor_) != 0) fail_with_errno("sync", path_, errno);
}

uint64_t OpenFile::size() const {
  struct stat status;
  if (fstat(descriptor_, &status) != 0) fail_with_errno("examine", path_, errno);
  return static_cast<uint64_t>(status.st_size);
}

void create_folder(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) fail_with_errno("create folder", path, error.value());
  if (!std::filesystem::is_directory(path, error)) fail_with_errno("create folder", path, EEXIST);
}

void sync_folder(const std::filesystem::path& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail_with_errno("open folder", path, errno);
  const int error = fsync(descriptor) != 0 ? errno : 0;
  close(descriptor);
  // Some file systems cannot sync a folder and say so with EINVAL.
  if (error != 0 && error != EINVAL) fail_with_errno("sync folder", path, error);
}

void rename_path(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) fail_with_errno("rename to", to, errno);
}

void exchange_paths(const std::filesystem::path& fresh, const std::filesystem::path& old) {
  if (renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, old.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno != EINVAL && errno != ENOSYS) fail_with_errno("replace", old, errno);
  std::filesystem::path aside = fresh;
  aside += ".old";
  rename_path(old, aside);
  rename_path(fresh, old);
  rename_path(aside, fresh);
}

std::string read_text(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) fail_with_errno("read", path, errno);
  std::ostringstream text;
  text << stream.rdbuf();
  if (stream.bad()) fail_with_errno("read", path, EIO);
  return std::move(text).str();
}

}  // namespace fmmformer::train
