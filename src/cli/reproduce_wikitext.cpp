// SPDX-License-Identifier: Apache-2.0
// `reproduce wikitext2` and `reproduce wikitext103`: the paper's Tables 2 and 3.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "cli/presets.h"
#include "cli/reproduce_commands.h"
#include "cli/reproduce_runs.h"
#include "cli/wikitext_table.h"
#include "report/wikitext.h"
#include "report/write_report.h"
#include "tasks/corpus/token_file.h"
#include "tasks/corpus/vocabulary.h"

namespace fmmformer::cli {
namespace {

namespace fs = std::filesystem;

/// A text that the models are trained on.
struct Text {
  std::string name;     // of configs, and of the command
  std::string title;    // for people
  std::string data;     // as `data fetch` and `data import` have it
  std::string example;  // of a command line
  std::string about_numbers;
};

const Text kSmallText = {
    .name = "wikitext2",
    .title = "WikiText-2",
    .data = "wikitext-2",
    .example = "--rows softmax,fmm2_band20 --device cuda --budget 9",
    .about_numbers =
        "The paper's are of WikiText-103, a text fifty times as long: the order of the "
        "models can be\ncompared, their numbers cannot."};
const Text kLargeText = {.name = "wikitext103",
                         .title = "WikiText-103",
                         .data = "wikitext-103",
                         .example = "--rows fmm2_band20 --device cuda --budget 600",
                         .about_numbers = "The paper's are of sliding windows (eval --sliding)."};

struct WikitextOptions : ReproduceOptions {
  std::vector<std::string> rows;
};

std::vector<std::string> all_rows() {
  std::vector<std::string> names;
  for (const report::PaperPerplexity& line : report::kPaperPerplexities) {
    names.emplace_back(line.row);
  }
  return names;
}

void add_options(CLI::App& app, WikitextOptions& options, const Text& text) {
  app.add_option("--rows", options.rows, join_names(all_rows()) + " (default: all)")
      ->type_name("NAME,..")
      ->delimiter(',');
  add_reproduce_options(app, options, "runs/" + text.name, "results/" + text.name);
  app.footer(
      "Runs what is not finished yet, one after another, and renders the paper's Tables 2 "
      "and 3 with it.\nRuns lie in OUT/ROW/seed-N; OUT/report.html has their curves.\n\n"
      "Examples:\n"
      "  fmmformer reproduce " +
      text.name + " " + text.example +
      "\n"
      "  fmmformer reproduce " +
      text.name + " --table --out results/" + text.name);
}

void check_data(const train::ExperimentConfig& experiment, const Text& text,
                const std::string& program) {
  const fs::path folder = experiment.task.wikitext.data;
  for (const tasks::Split split : tasks::kSplits) {
    const fs::path file = tasks::token_file_path(folder, split);
    if (fs::exists(file)) continue;
    throw UsageError("there is no '" + file.string() + "'; bring the data here with\n  " + program +
                     " data fetch " + text.data + "\n  " + program + " data import " + text.data +
                     " data/downloads/" + text.data + " --out " + folder.string());
  }
}

/// Mistakes show before anything is trained. First all rows with the first seed, then the next.
std::vector<PlannedRun> plan(const WikitextOptions& options, const Text& text,
                             const std::string& program) {
  std::vector<PlannedRun> runs;
  for (const int64_t seed : options.seeds) {
    for (const std::string& row : options.rows) {
      std::vector<std::string> overrides = {"train.seed=" + std::to_string(seed)};
      std::ranges::copy(options.overrides, std::back_inserter(overrides));
      const std::string name = text.name + "/" + row;
      PlannedRun run{.name = name,
                     .seed = seed,
                     .folder = fs::path(options.out) / row / seed_folder(seed),
                     .experiment = train::load_experiment(find_config(name), overrides)};
      check_data(run.experiment, text, program);
      check_folder(run);
      runs.push_back(std::move(run));
    }
  }
  return runs;
}

std::vector<report::Record> records_of(const WikitextOptions& options) {
  std::vector<report::Record> records;
  for (const std::string& row : options.rows) {
    std::ranges::move(records_of_seeds(fs::path(options.out) / row, options.seeds),
                      std::back_inserter(records));
  }
  return records;
}

void print_table(const std::vector<report::Record>& records, const Text& text) {
  std::printf(
      "\n%s: perplexity over windows without overlap, the best on valid and that model's on test; "
      "place: by test.\n%s\n\n%s",
      text.title.c_str(), text.about_numbers.c_str(), wikitext_table(records, text.name).c_str());
}

int run_reproduce_wikitext(const CommandLine& line, const Text& text) {
  WikitextOptions options;
  CLI::App app("Trains the language models of the paper's Tables 2 and 3 on " + text.title +
               ", and renders them with what they reach.");
  add_options(app, options, text);
  if (!read_options(app, line)) return kDone;
  check_names("--rows", options.rows, all_rows());
  if (options.rows.empty()) options.rows = all_rows();
  if (options.seeds.empty() && !options.only_table) options.seeds = {1};
  if (options.out.empty()) options.out = "runs/" + text.name;
  if (options.only_table) {
    const auto records = records_of(options);
    if (records.empty()) {
      throw UsageError("'" + options.out +
                       "' has no runs of these rows; without --table they are made");
    }
    print_table(records, text);
    return kDone;
  }
  const std::vector<PlannedRun> runs = plan(options, text, line.program);
  const Tally tally = train_all(runs, options, line, [&](const PlannedRun& run) {
    if (options.keep.empty()) return;
    const fs::path row = run.folder.parent_path().filename();
    keep_seed(run.folder, run.seed, options.keep / row);
  });
  if (const auto records = records_of(options); !records.empty()) {
    print_table(records, text);
    const fs::path page = fs::path(options.out) / "report.html";
    report::write_report({options.out}, page, {.title = "FMMformer on " + text.title});
    std::printf("\nThe page: %s\n", page.c_str());
  }
  return exit_code_of(tally, runs.size(), line);
}

}  // namespace

int run_reproduce_wikitext2(const CommandLine& line) {
  return run_reproduce_wikitext(line, kSmallText);
}

int run_reproduce_wikitext103(const CommandLine& line) {
  return run_reproduce_wikitext(line, kLargeText);
}

}  // namespace fmmformer::cli
