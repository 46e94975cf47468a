// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>

#include "cli/data_commands.h"
#include "tasks/data/import.h"

namespace fmmformer::cli {
namespace {

struct ImportOptions {
  std::string task, folder, documents, out;
  std::vector<std::string> train, valid, test;
};

void add_options(CLI::App& app, ImportOptions& options) {
  app.add_option("TASK", options.task, "listops, text, retrieval, image or pathfinder")->required();
  app.add_option("FOLDER", options.folder, "where the files are, under their usual names");
  const auto add_files = [&](const char* name, std::vector<std::string>& files, const char* split) {
    app.add_option(name, files,
                   std::string("instead of FOLDER: files (or a folder) of the ") + split + " split")
        ->type_name("FILE...");
  };
  add_files("--train", options.train, "train");
  add_files("--valid", options.valid, "valid");
  add_files("--test", options.test, "test");
  app.add_option("--documents", options.documents, "retrieval: the file with `id TAB text`")
      ->type_name("FILE");
  app.add_option("--out", options.out, "where the data files go (default: data/TASK)")
      ->type_name("FOLDER");
  app.footer(
      "A split without a source: text and image make the last tenth of train their valid split,\n"
      "text after a shuffle with a fixed seed; a folder of Pathfinder's pictures is shuffled and\n"
      "cut 80 / 10 / 10; nothing else is made up. Files may be packed (.xz, .gz).\n\n"
      "Examples:\n"
      "  fmmformer data import listops lra_release/listops-1000\n"
      "  fmmformer data import text aclImdb\n"
      "  fmmformer data import image --train data_batch_1.bin data_batch_2.bin\n"
      "  fmmformer data import retrieval --test pairs.test.tsv.xz --documents docs.tsv.xz");
}

tasks::ImportSources sources_of(const tasks::DataSet& data, const ImportOptions& options) {
  const bool named = !options.train.empty() || !options.valid.empty() || !options.test.empty();
  if (named != options.folder.empty()) {
    throw UsageError("give either a folder or files with --train, --valid, --test; wanted is: " +
                     std::string(data.sources));
  }
  tasks::ImportSources sources;
  if (named) {
    sources.train.assign(options.train.begin(), options.train.end());
    sources.valid.assign(options.valid.begin(), options.valid.end());
    sources.test.assign(options.test.begin(), options.test.end());
  } else {
    sources = tasks::find_sources(data, options.folder);
  }
  if (!options.documents.empty()) sources.documents = options.documents;
  return sources;
}

void print_sources(tasks::ImportSources sources) {
  for (const tasks::Split split : tasks::kSplits) {
    for (const auto& file : sources.of(split)) {
      std::printf("%-5s from %s\n", std::string(enum_name(split)).c_str(), file.c_str());
    }
  }
  if (!sources.pool.empty()) std::printf("all   from %s\n", sources.pool.c_str());
  std::fflush(stdout);
}

}  // namespace

int run_data_import(const CommandLine& line) {
  ImportOptions options;
  CLI::App app("Turns files that you have into data/TASK/SPLIT.fmmdata, which training reads.");
  add_options(app, options);
  if (!read_options(app, line)) return kDone;
  const tasks::DataSet& data = data_set_named(options.task);
  const std::filesystem::path out = data_folder(data, options.out);
  const tasks::ImportSources sources = sources_of(data, options);
  print_sources(sources);
  const auto begin = std::chrono::steady_clock::now();
  for (const tasks::ImportedSplit& split : tasks::import_data(data, sources, out)) {
    std::printf("%s: %lld examples", tasks::cache_path(out, split.split).c_str(),
                static_cast<long long>(split.examples));
    if (data.pair) std::printf(" of %lld documents", static_cast<long long>(split.documents));
    std::printf("\n");
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::printf("%.1f s\n", seconds.count());
  return kDone;
}

}  // namespace fmmformer::cli
