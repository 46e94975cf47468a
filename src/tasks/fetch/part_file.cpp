// SPDX-License-Identifier: Apache-2.0
#include "tasks/fetch/part_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <system_error>

#include "fmmformer/core/way_out.h"
#include "tasks/fetch/byte_text.h"
#include "tasks/fetch/file_error.h"

namespace fmmformer::tasks::fetch {
namespace {

/// Whether the name still belongs to the open file: the process that had it before may have renamed
/// or removed it.
bool is_same_file(int descriptor, const std::filesystem::path& path) {
  struct stat open_file, named_file;
  return fstat(descriptor, &open_file) == 0 && stat(path.c_str(), &named_file) == 0 &&
         open_file.st_dev == named_file.st_dev && open_file.st_ino == named_file.st_ino;
}

}  // namespace

PartFile::PartFile(const std::filesystem::path& path, const std::function<void()>& on_wait)
    : path_(path) {
  open_and_lock(on_wait);
  const off_t end = lseek(descriptor_, 0, SEEK_END);
  size_ = end > 0 ? end : 0;
}

void PartFile::open_and_lock(const std::function<void()>& on_wait) {
  bool has_waited = false;
  for (;;) {
    descriptor_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor_ < 0) fail(path_, "create", errno);
    int locked = flock(descriptor_, LOCK_EX | LOCK_NB);
    if (locked != 0 && errno == EWOULDBLOCK) {
      if (!has_waited && on_wait) on_wait();
      has_waited = true;
      do {
        locked = flock(descriptor_, LOCK_EX);
      } while (locked != 0 && errno == EINTR);
    }
    if (locked == 0 && is_same_file(descriptor_, path_)) return;
    const int error = errno;
    close(descriptor_);
    descriptor_ = -1;
    if (locked != 0) fail(path_, "lock", error);
  }
}

PartFile::~PartFile() {
  // Before the lock ends: a process that waits for it then makes a new file.
  if (!published_ && size_ == 0) unlink(path_.c_str());
  close(descriptor_);
}

void PartFile::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(path_, "write", errno);
    size_ += written;
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void PartFile::start_over() {
  if (ftruncate(descriptor_, 0) != 0) fail(path_, "empty", errno);
  lseek(descriptor_, 0, SEEK_SET);
  size_ = 0;
}

void PartFile::require_room_for(int64_t bytes) const {
  std::error_code error;
  const std::filesystem::path folder = path_.has_parent_path() ? path_.parent_path() : ".";
  const auto space = std::filesystem::space(folder, error);
  if (error || bytes <= 0 || static_cast<uintmax_t>(bytes) <= space.available) return;
  throw std::runtime_error("'" + path_.string() + "' needs " + byte_text(bytes) + " more, and " +
                           byte_text(static_cast<int64_t>(space.available)) + " are free" +
                           std::string(way_out(ENOSPC)));
}

void PartFile::publish(const std::filesystem::path& final_path) {
  if (fsync(descriptor_) != 0) fail(path_, "sync", errno);
  if (std::rename(path_.c_str(), final_path.c_str()) != 0) fail(final_path, "rename to", errno);
  published_ = true;
}

}  // namespace fmmformer::tasks::fetch
