// SPDX-License-Identifier: Apache-2.0
#include "train/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>

#include "fmmformer/core/atomic_file.h"

namespace fmmformer::train {
namespace {

constexpr const char* kLock = "lock";

std::string owner_of(const std::filesystem::path& lock) {
  std::string text;
  try {
    text = read_text(lock);
  } catch (const std::runtime_error&) {
    // The owner's number is a courtesy; that there is one we know already.
  }
  const size_t end = text.find('\n');
  text.resize(end == std::string::npos ? text.size() : end);
  return text.empty() ? "another process" : "process " + text;
}

/// The file stays when the lock ends: removing it would let two processes lock two files of one
/// name. The kernel drops the lock of a process that ends, even by kill -9.
OpenFile locked(const std::filesystem::path& folder) {
  OpenFile file(folder / kLock, O_RDWR | O_CREAT);
  if (flock(file.descriptor(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) fail_with_errno("lock", file.path(), errno);
    throw std::runtime_error("run folder '" + folder.string() + "' is in use by " +
                             owner_of(file.path()) +
                             "; wait until it ends, stop it, or use another folder (--out)");
  }
  file.truncate(0);
  file.append(std::to_string(getpid()) + "\n");
  return file;
}

}  // namespace

bool RunPaths::holds_run() const {
  for (const std::filesystem::path& part : {config(), record(), metrics()}) {
    if (std::filesystem::exists(part)) return true;
  }
  // An empty folder is what a run that could not begin leaves.
  return std::filesystem::exists(checkpoints()) && !std::filesystem::is_empty(checkpoints());
}

std::string RunPaths::read_config() const {
  if (!std::filesystem::exists(config())) {
    throw std::invalid_argument("'" + folder_.string() +
                                "' holds no run: it has no config.toml; give the folder of a run");
  }
  return read_text(config());
}

nlohmann::ordered_json RunPaths::read_record() const {
  if (!std::filesystem::exists(record())) return nlohmann::ordered_json::object();
  auto content = nlohmann::ordered_json::parse(read_text(record()), nullptr, false);
  if (content.is_discarded() || !content.is_object()) {
    throw std::runtime_error("'" + record().string() +
                             "' is not valid JSON; restore it from a copy or remove it");
  }
  return content;
}

RunFolder::RunFolder(const std::filesystem::path& folder)
    : RunPaths(folder), lock_(locked(folder)) {}

RunFolder RunFolder::create(const std::filesystem::path& path) {
  create_folder(path);
  RunFolder folder(path);
  if (folder.holds_run()) {
    throw std::invalid_argument("run folder '" + path.string() +
                                "' holds a run already; go on with it (--resume), use another "
                                "folder (--out), or remove it");
  }
  return folder;
}

RunFolder RunFolder::resume(const std::filesystem::path& path) {
  const std::string way_out = "; give the folder of a run, or start one without --resume";
  if (!std::filesystem::is_directory(path)) {
    throw std::invalid_argument("there is no run folder '" + path.string() + "'" + way_out);
  }
  // Asked before locking, so that a folder of something else gets no lock file.
  if (!std::filesystem::exists(RunPaths(path).config())) {
    throw std::invalid_argument("'" + path.string() + "' holds no run: it has no config.toml" +
                                way_out);
  }
  return RunFolder(path);
}

void RunFolder::write_config(std::string_view toml) const { write_file_atomically(config(), toml); }

void RunFolder::write_record(const nlohmann::ordered_json& content) const {
  write_file_atomically(record(), content.dump(2) + "\n");
}

}  // namespace fmmformer::train
