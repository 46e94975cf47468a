// SPDX-License-Identifier: Apache-2.0
#include "cli/unseen_data.h"

#include <stdlib.h>

#include <filesystem>

#include "cli/command.h"
#include "tasks/corpus/token_file.h"
#include "tasks/data/import.h"
#include "train/interrupt.h"

namespace fmmformer::cli {
namespace {

namespace fs = std::filesystem;

/// A folder of our own that does not outlive its scope.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string pattern = (fs::temp_directory_path() / "fmmformer-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) {
      throw std::runtime_error("cannot make a folder like '" + pattern +
                               "'; name a folder that can be written to in TMPDIR");
    }
    path_ = pattern;
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

bool is_data_file(const std::string& file) { return fs::path(file).extension() == ".fmmdata"; }

struct DataPlace {
  fs::path folder;
  tasks::Split split = tasks::Split::kTest;
};

// A data file is used where it is, unless its name is not that of its split. It comes from
// anywhere, so all of it is looked through, and what is wrong is told of the file that the user
// named.
DataPlace place_of(const fs::path& file, tasks::TaskName task, const fs::path& scratch) {
  const DataPlace here{.folder = file.parent_path(), .split = tasks::split_of_file(file)};
  tasks::DataCache::of_file(file, task, here.split).check();
  if (tasks::cache_path(here.folder, here.split) == file) return here;
  fs::create_symlink(fs::absolute(file), tasks::cache_path(scratch, here.split));
  return {.folder = scratch, .split = here.split};
}

DataPlace import_into(const fs::path& scratch, const UnseenData& data, tasks::TaskName task) {
  tasks::ImportSources sources{.documents = data.documents};
  sources.test.assign(data.files.begin(), data.files.end());
  tasks::import_data(tasks::data_set(task), sources, scratch);
  return {.folder = scratch};
}

void check_files(const UnseenData& data) {
  for (const std::string& file : data.files) {
    if (!fs::exists(file)) throw UsageError("--data '" + file + "': there is no such file");
    if (is_data_file(file) && data.files.size() > 1)
      throw UsageError("--data: a .fmmdata file is scored by itself; name it alone");
  }
}

}  // namespace

UnseenTask task_over(const UnseenData& data, tasks::TaskConfig config) {
  if (config.name == tasks::TaskName::kWikitext) {
    const std::string& folder = config.wikitext.data;
    const bool has_test = fs::exists(tasks::token_file_path(folder, tasks::Split::kTest));
    throw UsageError(
        "--data scores files of examples, and a text to predict has none; read it with the run's "
        "vocabulary by `fmmformer data import wikitext --test " +
        data.files.front() + " --out " + folder + "`" +
        (has_test ? ", in place of the test split that is there," : "") +
        " and score it with --split test instead of --data");
  }
  std::string& folder = tasks::data_folder(config);
  check_files(data);
  const train::InterruptGuard interrupt;  // Ctrl-C must not leave the folder behind
  const ScratchFolder scratch;
  const DataPlace place = is_data_file(data.files.front())
                              ? place_of(data.files.front(), config.name, scratch.path())
                              : import_into(scratch.path(), data, config.name);
  folder = place.folder.string();
  UnseenTask unseen{.task = tasks::make_task(config, 0), .split = place.split};
  unseen.task->examples(unseen.split);  // opens the file
  if (interrupt.requested())
    throw CommandError("fmmformer eval: stopped", ExitCode(kStoppedBySignal + interrupt.signal()));
  return unseen;
}

}  // namespace fmmformer::cli
