// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>

#include "cli/data_commands.h"

namespace fmmformer::cli {
namespace {

struct Tally {
  int good = 0, bad = 0;
};

void check_folder(const tasks::DataSet& data, const std::filesystem::path& folder, Tally& tally) {
  for (const tasks::Split split : tasks::kSplits) {
    if (!std::filesystem::exists(tasks::cache_path(folder, split))) continue;
    try {
      const tasks::DataCache cache(folder, data.task, split);
      cache.check();
      std::printf("%s: good, %lld examples, %.1f MB\n", cache.path().c_str(),
                  static_cast<long long>(cache.examples()),
                  static_cast<double>(cache.file_bytes()) / 1e6);
      ++tally.good;
    } catch (const tasks::DataError& error) {
      std::printf("BAD: %s\n", error.what());
      ++tally.bad;
    }
  }
}

}  // namespace

int run_data_check(const CommandLine& line) {
  std::string task, folder;
  CLI::App app("Reads data files whole and verifies them against their checksums.");
  app.add_option("TASK", task, "whose (default: all tasks')");
  app.add_option("--data", folder, "the task's folder (default: data/TASK)")->type_name("FOLDER");
  app.footer("Exit code 1 when a file is bad.\n\nExample:\n  fmmformer data check listops");
  if (!read_options(app, line)) return kDone;
  if (task.empty() && !folder.empty()) throw UsageError("--data is for one task; name it");
  Tally tally;
  for (const tasks::DataSet* data : tasks::data_sets()) {
    if (!task.empty() && data != &data_set_named(task)) continue;
    check_folder(*data, data_folder(*data, folder), tally);
  }
  if (tally.good + tally.bad == 0) {
    throw UsageError("there are no data files; `fmmformer data list` says what can be imported");
  }
  return tally.bad == 0 ? kDone : kFailed;
}

}  // namespace fmmformer::cli
