// SPDX-License-Identifier: Apache-2.0
#include "fmmformer/core/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <system_error>

#include "fmmformer/core/way_out.h"

namespace fmmformer {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, const char* what, int error) {
  throw std::runtime_error(
      "cannot write '" + path.string() + "' (" + what +
      "): " + std::generic_category().message(error) +
      std::string(error == ENOENT ? "; create the folder first" : way_out(error)));
}

/// A temporary file that does not outlive its scope unless it is renamed to its final name.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::filesystem::path& path) : path_(path), temporary_(path) {
    // Several threads and processes may write the same path at once: each has a name of its own,
    // the last one wins.
    static std::atomic<unsigned> counter{0};
    temporary_ += ".tmp-" + std::to_string(getpid()) + "-" + std::to_string(counter++);
    descriptor_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ < 0) fail(path_, "create", errno);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (descriptor_ >= 0) close(descriptor_);
    if (!renamed_) unlink(temporary_.c_str());
  }

  void append(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t written = write(descriptor_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail(path_, "write", errno);
      bytes = bytes.subspan(static_cast<size_t>(written));
    }
  }

  void move_into_place() {
    if (fsync(descriptor_) != 0) fail(path_, "sync", errno);
    // Network file systems report a full disk only here.
    const int closed = close(descriptor_);
    descriptor_ = -1;
    if (closed != 0) fail(path_, "close", errno);
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail(path_, "rename", errno);
    renamed_ = true;
  }

 private:
  const std::filesystem::path path_;
  std::filesystem::path temporary_;
  int descriptor_ = -1;
  bool renamed_ = false;
};

/// The new name is on the disk only once its folder is.
void sync_folder(const std::filesystem::path& path) {
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  // A folder that may be written to but not read can not be synced, and some file systems refuse:
  // the file is in place.
  if (descriptor < 0) return;
  const int error = fsync(descriptor) != 0 ? errno : 0;
  close(descriptor);
  if (error == EIO || error == ENOSPC || error == EDQUOT) fail(path, "sync folder", error);
}

void refuse_special_file(const std::filesystem::path& path) {
  struct stat status;
  if (stat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode)) return;
  if (S_ISDIR(status.st_mode)) fail(path, "create", EISDIR);
  // Renaming over /dev/null or a pipe would replace it for everyone.
  throw std::runtime_error("cannot write '" + path.string() +
                           "': it is a device or a pipe; give the path of an ordinary file");
}

}  // namespace

void write_file_atomically(const std::filesystem::path& path,
                           std::span<const std::span<const std::byte>> pieces) {
  refuse_special_file(path);
  TemporaryFile file(path);
  for (const std::span<const std::byte> piece : pieces) file.append(piece);
  file.move_into_place();
  sync_folder(path);
}

void write_file_atomically(const std::filesystem::path& path, std::span<const std::byte> bytes) {
  write_file_atomically(path, std::span<const std::span<const std::byte>>(&bytes, 1));
}

void write_file_atomically(const std::filesystem::path& path, std::string_view text) {
  write_file_atomically(path, std::as_bytes(std::span(text)));
}

}  // namespace fmmformer
