// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <thread>

#include "cli/data_commands.h"
#include "cli/data_corpus.h"
#include "cli/live_line.h"
#include "fmmformer/core/random.h"
#include "tasks/listops_generator.h"
#include "tasks/pathfinder_generator.h"

namespace fmmformer::cli {
namespace {

struct MakeOptions {
  std::string task, out;
  int64_t train = 0, valid = 0, test = 0;
  uint64_t seed = 1;
  int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  tasks::ListOpsOptions listops;

  int64_t count(tasks::Split split) const {
    if (split == tasks::Split::kTrain) return train;
    return split == tasks::Split::kValid ? valid : test;
  }
};

void add_options(CLI::App& app, MakeOptions& options) {
  app.add_option("TASK", options.task, "listops or pathfinder")->required();
  const auto add_count = [&](const char* name, int64_t& count, const char* what) {
    require_at_least(app.add_option(name, count, what)->type_name("N"), 0);
  };
  add_count("--count", options.train, "examples to train on");
  add_count("--valid", options.valid, "examples of the valid split");
  add_count("--test", options.test, "examples of the test split");
  require_at_least(
      app.add_option("--seed", options.seed, "names the data set (default: 1)")->type_name("S"), 0);
  app.add_option("--out", options.out, "where the data files go (default: data/TASK)")
      ->type_name("FOLDER");
  app.add_option("--threads", options.threads, "changes nothing but speed (default: all cores)")
      ->check(CLI::Range(1, 1024))
      ->type_name("N");
  app.add_option("--shortest", options.listops.min_length,
                 "listops: expressions are longer than this (default: 500)")
      ->type_name("TOKENS");
  app.add_option("--longest", options.listops.max_length,
                 "listops: and shorter than this (default: 2000)")
      ->type_name("TOKENS");
  app.footer(
      "An example is a function of the seed, its split and its number: more of them begin with "
      "the\n"
      "same ones. The defaults are those of Long Range Arena's own generators.\n\n"
      "Examples:\n"
      "  fmmformer data make listops --count 96000 --valid 2000 --test 2000\n"
      "  fmmformer data make pathfinder --count 160000 --valid 20000 --test 20000\n"
      "  fmmformer data make listops --count 5000 --valid 500 --shortest 8 --longest 60 --out "
      "tiny");
}

tasks::CacheWriter make_split(const MakeOptions& options, tasks::TaskName task,
                              tasks::Split split) {
  const tasks::GenerateRequest request{.count = options.count(split),
                                       .seed = derive_seed(options.seed, enum_name(split)),
                                       .threads = options.threads};
  tasks::CacheWriter out;
  const LiveLine live;
  const auto add = [&](std::string_view document, int label) {
    out.add(document, static_cast<uint16_t>(label));
    if (out.examples() % 500 == 0) {
      live.show(std::string(enum_name(split)) + ": " + std::to_string(out.examples()) + "/" +
                std::to_string(request.count));
    }
  };
  const auto bytes = [](const auto& values) {
    return std::string_view(reinterpret_cast<const char*>(values.data()), values.size());
  };
  if (task == tasks::TaskName::kListops) {
    tasks::generate_listops(request, options.listops, [&](const tasks::ListOpsExample& example) {
      add(bytes(example.tokens), example.label);
    });
  } else {
    tasks::generate_pathfinder(request, {}, [&](const tasks::PathfinderExample& example) {
      add(bytes(example.pixels), example.label);
    });
  }
  live.clear();
  return out;
}

}  // namespace

int run_data_make(const CommandLine& line) {
  MakeOptions options;
  CLI::App app("Generates data/TASK/SPLIT.fmmdata, for the two tasks whose data is made by rules.");
  add_options(app, options);
  if (!read_options(app, line)) return kDone;
  if (find_corpus(options.task)) {
    throw UsageError("the text of " + options.task +
                     " is real and cannot be made; `fmmformer data list` says what can be "
                     "imported");
  }
  const tasks::DataSet& data = data_set_named(options.task);
  if (!tasks::is_generated(data.task)) {
    throw UsageError("the data of " + options.task +
                     " is real and cannot be made; `fmmformer data fetch " + options.task +
                     "` brings it here");
  }
  if (options.train + options.valid + options.test == 0)
    throw UsageError("nothing to make: give --count, --valid or --test");
  const std::filesystem::path out = data_folder(data, options.out);
  for (const tasks::Split split : tasks::kSplits) {
    if (options.count(split) == 0) continue;
    const std::filesystem::path file = tasks::cache_path(out, split);
    const bool replaces = std::filesystem::exists(file);
    const auto begin = std::chrono::steady_clock::now();
    make_split(options, data.task, split).write(out, data.task, split);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::printf("%s: %lld examples, %.1f s%s\n", file.c_str(),
                static_cast<long long>(options.count(split)), seconds.count(),
                replaces ? ", in place of those that were there" : "");
    std::fflush(stdout);
  }
  return kDone;
}

}  // namespace fmmformer::cli
