// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>

#include "cli/data_commands.h"
#include "cli/data_corpus.h"
#include "tasks/data/import.h"

namespace fmmformer::cli {
namespace {

struct ImportOptions {
  std::string task, folder, documents, level, out;
  int64_t min_count = 1;
  std::vector<std::string> train, valid, test;

  bool names_files() const { return !train.empty() || !valid.empty() || !test.empty(); }
};

void add_options(CLI::App& app, ImportOptions& options) {
  app.add_option("TASK", options.task,
                 "listops, text, retrieval, image, pathfinder, wikitext-2, wikitext-103, or "
                 "wikitext for a text of your own")
      ->required();
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
  app.add_option("--level", options.level, "wikitext: a token is a word (default) or a byte")
      ->type_name("LEVEL");
  require_at_least(
      app.add_option("--min-count", options.min_count,
                     "wikitext: words that the train text has less often are read as <unk> "
                     "(default: 1, none)")
          ->type_name("N"),
      1);
  app.add_option("--out", options.out, "where the data files go (default: data/TASK)")
      ->type_name("FOLDER");
  app.footer(
      "A split without a source: text, image and wikitext make the last tenth of train their "
      "valid\n"
      "split, text after a shuffle with a fixed seed; a folder of Pathfinder's pictures is "
      "shuffled\n"
      "and cut 80 / 10 / 10; nothing else is made up. The vocabulary of words is that of the "
      "train\n"
      "text. Files may be packed (.xz, .gz).\n\n"
      "Examples:\n"
      "  fmmformer data import listops lra_release/listops-1000\n"
      "  fmmformer data import text aclImdb\n"
      "  fmmformer data import image --train data_batch_1.bin data_batch_2.bin\n"
      "  fmmformer data import retrieval --test pairs.test.tsv.xz --documents docs.tsv.xz\n"
      "  fmmformer data import wikitext-2 wikitext-2 --out data/wikitext-2\n"
      "  fmmformer data import wikitext --train my.txt --level byte --out data/my");
}

/// Those that the user named, or what `find` finds in the folder.
template <typename Find>
tasks::ImportSources sources_of(const ImportOptions& options, std::string_view wanted,
                                const Find& find) {
  if (options.names_files() != options.folder.empty()) {
    throw UsageError("give either a folder or files with --train, --valid, --test; wanted is: " +
                     std::string(wanted));
  }
  if (!options.names_files()) return find(options.folder);
  tasks::ImportSources sources;
  sources.train.assign(options.train.begin(), options.train.end());
  sources.valid.assign(options.valid.begin(), options.valid.end());
  sources.test.assign(options.test.begin(), options.test.end());
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

void import_corpus(const Corpus& corpus, const ImportOptions& options) {
  if (!options.documents.empty()) throw UsageError("--documents is for retrieval; leave it out");
  const tasks::ImportSources sources = sources_of(options, corpus.sources, tasks::find_texts);
  print_sources(sources);
  tasks::CorpusOptions how{.level = std::nullopt, .min_count = options.min_count};
  if (!options.level.empty()) how.level = enum_from_name<tasks::TextLevel>(options.level);
  run_corpus_import(sources, how, corpus_folder(corpus, options.out));
}

void import_examples(const tasks::DataSet& data, const ImportOptions& options) {
  if (!options.level.empty() || options.min_count > 1) {
    throw UsageError("--level and --min-count are for wikitext; leave them out");
  }
  const std::filesystem::path out = data_folder(data, options.out);
  tasks::ImportSources sources = sources_of(options, data.sources, [&](const std::string& folder) {
    return tasks::find_sources(data, folder);
  });
  if (!options.documents.empty()) sources.documents = options.documents;
  print_sources(sources);
  for (const tasks::ImportedSplit& split : tasks::import_data(data, sources, out)) {
    std::printf("%s: %lld examples", tasks::cache_path(out, split.split).c_str(),
                static_cast<long long>(split.examples));
    if (data.pair) std::printf(" of %lld documents", static_cast<long long>(split.documents));
    std::printf("\n");
  }
}

}  // namespace

int run_data_import(const CommandLine& line) {
  ImportOptions options;
  CLI::App app(
      "Turns files that you have into data/TASK/SPLIT.fmmdata (or .fmmtokens), which training "
      "reads.");
  add_options(app, options);
  if (!read_options(app, line)) return kDone;
  const auto begin = std::chrono::steady_clock::now();
  if (const Corpus* corpus = find_corpus(options.task)) {
    import_corpus(*corpus, options);
  } else {
    import_examples(data_set_named(options.task), options);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::printf("%.1f s\n", seconds.count());
  return kDone;
}

}  // namespace fmmformer::cli
