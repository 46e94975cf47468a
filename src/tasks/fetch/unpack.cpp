// SPDX-License-Identifier: Apache-2.0
#include "tasks/fetch/unpack.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>

#include "tasks/fetch/archive.h"
#include "tasks/fetch/file_error.h"

namespace fmmformer::tasks::fetch {
namespace {

namespace fs = std::filesystem;

class Descriptor {
 public:
  explicit Descriptor(int descriptor) : descriptor_(descriptor) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

/// A folder that does not outlive its scope unless it is given its final name.
class StagingFolder {
 public:
  explicit StagingFolder(const fs::path& final_path)
      : final_path_(final_path), path_(final_path.string() + ".part") {
    fs::remove_all(path_);  // of a run that was killed
    fs::create_directories(path_);
  }
  StagingFolder(const StagingFolder&) = delete;
  StagingFolder& operator=(const StagingFolder&) = delete;
  ~StagingFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

  void move_into_place() const {
    const Descriptor folder(open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    // Once for all: hundreds of thousands of small files would take an hour one by one.
    if (folder.get() < 0 || syncfs(folder.get()) != 0) fail(path_, "sync", errno);
    fs::rename(path_, final_path_);
  }

 private:
  const fs::path final_path_, path_;
};

std::vector<std::string> components_of(std::string_view path) {
  std::vector<std::string> components;
  while (!path.empty()) {
    const size_t slash = std::min(path.find('/'), path.size());
    const std::string_view component = path.substr(0, slash);
    if (!component.empty() && component != ".") components.emplace_back(component);
    path.remove_prefix(std::min(slash + 1, path.size()));
  }
  return components;
}

bool matches(const std::string& path, const std::string& wanted) {
  return wanted.ends_with('/') ? path.starts_with(wanted) : path == wanted;
}

/// The rules that say which members are taken and where they go.
class Selector {
 public:
  Selector(const fs::path& archive, const Selection& selection)
      : archive_(archive), selection_(selection) {}

  /// Where below the folder a member goes; nothing for one that is not wanted. A path leads there
  /// from the folder's name on; what is before it never counts.
  std::optional<std::string> place_of(const ArchiveMember& member) {
    const std::vector<std::string> components = components_of(member.path);
    if (member.kind == MemberKind::kFolder || components.empty()) return std::nullopt;
    if (components.back().starts_with("._")) return std::nullopt;  // macOS keeps its own there
    for (size_t i = 0; i + 1 < components.size(); ++i) {
      if (components[i] != selection_.folder) continue;
      std::string rest = components[i + 1];
      for (size_t j = i + 2; j < components.size(); ++j) rest += "/" + components[j];
      for (const std::string& wanted : selection_.wanted) {
        if (!matches(rest, wanted)) continue;
        check_safe(member, components);
        found_.insert(wanted);
        return rest;
      }
    }
    return std::nullopt;
  }

  void check_complete() const {
    for (const std::string& wanted : selection_.wanted) {
      if (!found_.contains(wanted)) {
        throw ArchiveError(archive_, "it holds no " + selection_.folder + "/" + wanted);
      }
    }
  }

 private:
  void check_safe(const ArchiveMember& member, const std::vector<std::string>& components) const {
    const bool leaves = std::ranges::find(components, "..") != components.end() ||
                        member.path.find('\0') != std::string::npos;
    if (leaves) throw ArchiveError(archive_, "'" + member.path + "' leads out of its folder");
    if (member.kind != MemberKind::kFile) {
      throw ArchiveError(archive_, "'" + member.path + "' is a link or a device, not a file");
    }
  }

  const fs::path& archive_;
  const Selection& selection_;
  std::set<std::string> found_;
};

void write_all(int descriptor, std::span<const std::byte> bytes, const fs::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail(path, "write", errno);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

/// Two processes that fetch at once must not unpack over each other. Where the file system has no
/// locks, they have to be kept apart by hand.
Descriptor locked(const fs::path& archive) {
  const int descriptor = open(archive.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail(archive, "read", errno);
  while (flock(descriptor, LOCK_EX) != 0 && errno == EINTR) {
  }
  return Descriptor(descriptor);
}

void check_existing(const fs::path& folder, const Selection& selection) {
  for (const std::string& wanted : selection.wanted) {
    if (fs::exists(folder / wanted)) continue;
    throw std::runtime_error("'" + folder.string() + "' is there already and lacks " + wanted +
                             "; move it away and run this again");
  }
}

Unpacked unpack_members(const fs::path& archive, const Selection& selection, const fs::path& into,
                        const Listener& listener) {
  const auto archive_size = static_cast<int64_t>(fs::file_size(archive));
  const std::unique_ptr<ArchiveReader> reader = open_archive(archive);
  Selector selector(archive, selection);
  std::vector<std::byte> buffer(1 << 20);
  Unpacked unpacked;
  while (const std::optional<ArchiveMember> member = reader->next()) {
    listener.progress({Phase::kUnpack, reader->position(), archive_size});
    const std::optional<std::string> place = selector.place_of(*member);
    if (!place) continue;
    const fs::path path = into / *place;
    fs::create_directories(path.parent_path());
    const Descriptor file(
        open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (file.get() < 0) fail(path, "create", errno);
    while (const size_t count = reader->read(buffer)) {
      write_all(file.get(), std::span(buffer).first(count), path);
      listener.progress({Phase::kUnpack, reader->position(), archive_size});
    }
    ++unpacked.files;
    unpacked.bytes += member->size;
  }
  selector.check_complete();
  return unpacked;
}

}  // namespace

Unpacked unpack(const fs::path& archive, const Selection& selection, const fs::path& into,
                const Listener& listener) {
  const Descriptor lock = locked(archive);
  const fs::path folder = into / selection.folder;
  if (fs::exists(folder)) {
    check_existing(folder, selection);
    return {.folder = folder, .was_there = true};
  }
  const StagingFolder staging(folder);
  Unpacked unpacked = unpack_members(archive, selection, staging.path(), listener);
  staging.move_into_place();
  unpacked.folder = folder;
  return unpacked;
}

}  // namespace fmmformer::tasks::fetch
