// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint_store.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <system_error>

#include "train/checkpoint_files.h"
#include "train/file_system.h"

namespace fmmformer::train {
namespace {

constexpr std::string_view kPrefix = "step-";
// Everything with this prefix is half written or half removed, and nobody's.
constexpr std::string_view kTemporaryPrefix = ".tmp-";

std::string name_of(int64_t step) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "step-%08lld", static_cast<long long>(step));
  return text.data();
}

std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  // 'step-5' or 'step-00000005.bak' is somebody else's folder.
  if (error != std::errc() || stop != end || name != name_of(step)) return std::nullopt;
  return step;
}

void remove_folder(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) fail_with_errno("remove", path, error.value());
}

/// A name in the same folder that no other process uses.
std::filesystem::path temporary_for(const std::filesystem::path& path) {
  return path.parent_path() / (std::string(kTemporaryPrefix) + path.filename().string() + "-" +
                               std::to_string(getpid()));
}

/// A folder that does not outlive its scope unless it is renamed.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(std::filesystem::path path) : path_(std::move(path)) {
    remove_folder(path_);
    create_folder(path_);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace

std::string steps_text(const std::vector<int64_t>& steps) {
  std::string text;
  for (const int64_t step : steps) text += (text.empty() ? "" : ", ") + std::to_string(step);
  return text.empty() ? "none" : text;
}

CheckpointStore::CheckpointStore(std::filesystem::path folder, StoreAccess access, int64_t keep)
    : folder_(std::move(folder)), keep_(keep) {
  if (keep_ < 1) {
    throw std::invalid_argument("CheckpointStore: keep is " + std::to_string(keep_) +
                                ", allowed: at least 1");
  }
  if (access == StoreAccess::kRead) return;
  create_folder(folder_);
  remove_leftovers();
}

std::filesystem::path CheckpointStore::path_of(int64_t step) const {
  return folder_ / name_of(step);
}

void CheckpointStore::save(int64_t step, const CheckpointContent& content) const {
  const std::filesystem::path path = path_of(step);
  const TemporaryFolder fresh(temporary_for(path));
  write_checkpoint_files(fresh.path(), step, content);
  sync_folder(fresh.path());
  if (std::filesystem::exists(path)) {
    exchange_paths(fresh.path(), path);  // what was there goes with `fresh`
  } else {
    rename_path(fresh.path(), path);
  }
  sync_folder(folder_);
  remove_old();
}

std::vector<int64_t> CheckpointStore::steps() const {
  std::vector<int64_t> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, error)) {
    if (const auto step = step_of(entry.path().filename().string())) found.push_back(*step);
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::optional<int64_t> CheckpointStore::latest() const {
  const std::vector<int64_t> found = steps();
  return found.empty() ? std::nullopt : std::optional(found.back());
}

std::optional<int64_t> CheckpointStore::best() const {
  const std::vector<int64_t> found = steps();
  for (auto step = found.rbegin(); step != found.rend(); ++step) {
    try {
      if (read_checkpoint_state(path_of(*step), *step).best) return *step;
    } catch (const std::exception&) {
      // A damaged one is nobody's best; latest_good and load speak of it.
    }
  }
  return std::nullopt;
}

std::string CheckpointStore::problem_of(int64_t step, CheckpointParts parts) const {
  try {
    const CheckpointState state = read_checkpoint_state(path_of(step), step);
    check_checkpoint_file(path_of(step), state, kModelFile);
    if (parts == CheckpointParts::kAll) check_checkpoint_file(path_of(step), state, kOptimizerFile);
  } catch (const std::exception& problem) {
    return problem.what();
  }
  return "";
}

GoodCheckpoint CheckpointStore::latest_good(CheckpointParts parts) const {
  GoodCheckpoint good;
  const std::vector<int64_t> found = steps();
  for (auto step = found.rbegin(); step != found.rend(); ++step) {
    std::string problem = problem_of(*step, parts);
    if (problem.empty()) {
      good.step = *step;
      break;
    }
    good.skipped.push_back({.step = *step, .reason = std::move(problem)});
  }
  return good;
}

GoodCheckpoint CheckpointStore::best_good() const {
  GoodCheckpoint good;
  const std::vector<int64_t> found = steps();
  for (auto step = found.rbegin(); step != found.rend(); ++step) {
    bool is_best = true;  // until its state says otherwise: a damaged one might have been
    std::string problem;
    try {
      is_best = read_checkpoint_state(path_of(*step), *step).best;
      if (is_best) problem = problem_of(*step, CheckpointParts::kModel);
    } catch (const std::exception& error) {
      problem = error.what();
    }
    if (!is_best) continue;
    if (problem.empty()) {
      good.step = *step;
      return good;
    }
    good.skipped.push_back({.step = *step, .reason = std::move(problem)});
  }
  good.step = latest_good(CheckpointParts::kModel).step;
  return good;
}

std::vector<int64_t> CheckpointStore::good_steps(CheckpointParts parts) const {
  std::vector<int64_t> good = steps();
  std::erase_if(good, [&](int64_t step) { return !problem_of(step, parts).empty(); });
  return good;
}

LoadedCheckpoint CheckpointStore::load(int64_t step, CheckpointParts parts) const {
  const std::filesystem::path path = path_of(step);
  if (!std::filesystem::exists(path)) {
    throw std::invalid_argument("'" + folder_.string() + "' has no checkpoint of step " +
                                std::to_string(step) + "; there are: " + steps_text(steps()));
  }
  try {
    CheckpointState state = read_checkpoint_state(path, step);
    LoadedCheckpoint loaded{.step = step, .best = state.best, .state = std::move(state.state)};
    check_checkpoint_file(path, state, kModelFile);
    loaded.model = read_safetensors(path / kModelFile);
    if (parts == CheckpointParts::kAll) {
      check_checkpoint_file(path, state, kOptimizerFile);
      loaded.optimizer = read_safetensors(path / kOptimizerFile);
    }
    return loaded;
  } catch (const std::exception& problem) {
    const std::vector<int64_t> others = good_steps(parts);
    throw DamagedCheckpoint("checkpoint '" + path.string() + "' is damaged: " + problem.what() +
                            (others.empty()
                                 ? "; no other one is good: restore it from a copy or start anew"
                                 : "; good are those of step " + steps_text(others) +
                                       ": use one of them, or restore this one from a copy"));
  }
}

void CheckpointStore::discard_after(int64_t step) const {
  for (const int64_t other : steps()) {
    if (other > step) remove_checkpoint(other);
  }
}

void CheckpointStore::remove_old() const {
  const std::vector<int64_t> found = steps();
  const std::optional<int64_t> kept = best();
  for (size_t i = 0; i + static_cast<size_t>(keep_) < found.size(); ++i) {
    if (found[i] != kept) remove_checkpoint(found[i]);
  }
}

void CheckpointStore::remove_checkpoint(int64_t step) const {
  // Renamed first: a process that is killed here leaves no checkpoint with half of its files.
  const std::filesystem::path doomed = temporary_for(path_of(step));
  remove_folder(doomed);
  rename_path(path_of(step), doomed);
  remove_folder(doomed);
}

void CheckpointStore::remove_leftovers() const {
  std::vector<std::filesystem::path> leftovers;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    if (entry.path().filename().string().starts_with(kTemporaryPrefix)) {
      leftovers.push_back(entry.path());
    }
  }
  for (const std::filesystem::path& leftover : leftovers) remove_folder(leftover);
}

}  // namespace fmmformer::train
