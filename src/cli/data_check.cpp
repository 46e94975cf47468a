// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>

#include "cli/data_commands.h"
#include "cli/data_corpus.h"
#include "tasks/corpus/token_file.h"

namespace fmmformer::cli {
namespace {

struct CheckedFiles {
  int good = 0, bad = 0;
};

/// Calls `check`, which throws DataError for a bad file and else gives what there is to say.
template <typename Check>
void check_file(const std::filesystem::path& path, const Check& check, CheckedFiles& tally) {
  if (!std::filesystem::exists(path)) return;
  try {
    const std::string good = check();
    std::printf("%s: good, %s, %.1f MB\n", path.c_str(), good.c_str(),
                static_cast<double>(std::filesystem::file_size(path)) / 1e6);
    ++tally.good;
  } catch (const tasks::DataError& error) {
    std::printf("BAD: %s\n", error.what());
    ++tally.bad;
  }
}

void check_folder(const tasks::DataSet& data, const std::filesystem::path& folder,
                  CheckedFiles& tally) {
  for (const tasks::Split split : tasks::kSplits) {
    const auto check = [&] {
      const tasks::DataCache cache(folder, data.task, split);
      cache.check();
      return std::to_string(cache.examples()) + " examples";
    };
    check_file(tasks::cache_path(folder, split), check, tally);
  }
}

void check_corpus(const std::filesystem::path& folder, CheckedFiles& tally) {
  const auto check_words = [&] {
    const tasks::Vocabulary words = tasks::Vocabulary::read(folder);
    return std::to_string(words.size()) + " " + std::string(enum_name(words.level())) + "s";
  };
  check_file(tasks::vocabulary_path(folder), check_words, tally);
  for (const tasks::Split split : tasks::kSplits) {
    const auto check = [&] {
      const tasks::TokenFile file(folder, split, tasks::Vocabulary::read(folder));
      file.check();
      return std::to_string(file.tokens()) + " tokens";
    };
    check_file(tasks::token_file_path(folder, split), check, tally);
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
  CheckedFiles tally;
  const Corpus* named = find_corpus(task);
  const tasks::DataSet* named_set = task.empty() || named ? nullptr : &data_set_named(task);
  for (const tasks::DataSet* data : tasks::data_sets()) {
    if (task.empty() || data == named_set) check_folder(*data, data_folder(*data, folder), tally);
  }
  for (const Corpus& corpus : corpora()) {
    if (task.empty() || &corpus == named) check_corpus(corpus_folder(corpus, folder), tally);
  }
  if (tally.good + tally.bad == 0) {
    throw UsageError("there are no data files; `fmmformer data list` says what can be imported");
  }
  return tally.bad == 0 ? kDone : kFailed;
}

}  // namespace fmmformer::cli
