// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sched.h>
#include <sys/mount.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "core/temporary_folder.h"

namespace fmmformer::train {

/// A disk in memory, of a few kilobytes, seen by this process only. Needs root.
class SmallDisk {
 public:
  explicit SmallDisk(int kilobytes) {
    // In a mount table of our own: whatever happens to this process, nothing stays mounted.
    if (unshare(CLONE_NEWNS) != 0 ||
        mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", folder_.path().c_str(), "tmpfs", 0,
              ("size=" + std::to_string(kilobytes) + "k").c_str()) != 0) {
      problem_ = std::string("cannot mount a small disk: ") + std::strerror(errno) +
                 "; run this test as root";
    }
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  ~SmallDisk() {
    if (problem_.empty()) umount2(folder_.path().c_str(), MNT_DETACH);
  }

  /// Empty when the disk is there.
  const std::string& problem() const { return problem_; }
  const std::filesystem::path& path() const { return folder_.path(); }
  std::filesystem::path operator/(const std::string& name) const { return path() / name; }

  bool make_read_only() const {
    return mount(nullptr, path().c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) == 0;
  }

 private:
  const TemporaryFolder folder_;
  std::string problem_;
};

}  // namespace fmmformer::train
