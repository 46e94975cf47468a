// SPDX-License-Identifier: Apache-2.0
// `reproduce`: tables of the paper, run and rendered.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>

#include "cli/commands.h"
#include "cli/data_commands.h"
#include "cli/device_options.h"
#include "cli/lra_plan.h"
#include "cli/lra_table.h"
#include "cli/presets.h"
#include "cli/run_identity.h"
#include "cli/tiny_lra.h"
#include "cli/train_progress.h"
#include "fmmformer/core/allocator.h"
#include "fmmformer/core/utc_time.h"
#include "report/write_report.h"
#include "tasks/fetch/sources.h"
#include "train/trainer.h"

namespace fmmformer::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct ReproduceOptions {
  LraSelection selection;
  std::string out, keep;
  double budget = -1;  // minutes; none was given
  std::vector<std::string> overrides;
  bool only_table = false;
  bool quiet = false;
  DeviceOptions device;
};

void add_options(CLI::App& app, ReproduceOptions& options) {
  LraSelection& selection = options.selection;
  const auto add_names = [&](const char* name, std::vector<std::string>& names, const char* what) {
    app.add_option(name, names, what)->type_name("NAME,..")->delimiter(',');
  };
  add_names("--tasks", selection.tasks,
            "listops, text, retrieval, image, pathfinder (default: all)");
  add_names("--rows", selection.rows,
            "softmax, linear, band5, fmm1_band5, fmm2_band5 (default: these; with --tiny the first "
            "and the last); text also has softmax_1024 and fmm2_band5_1024");
  add_names("--recipes", selection.recipes,
            "published, tuned (default: both; with --tiny the first)");
  app.add_option("--seeds", selection.seeds, "numbers (default: 1; with --table all there are)")
      ->type_name("N,..")
      ->delimiter(',')
      ->check(CLI::NonNegativeNumber);
  app.add_option("--budget", options.budget,
                 "minutes: after these the run that is under way is saved, and none begins; the "
                 "same command goes on")
      ->type_name("MINUTES")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--out", options.out,
                 "folder of the runs (default: runs/lra, with --tiny runs/lra_tiny)")
      ->type_name("FOLDER");
  CLI::Option* keep =
      app.add_option("--keep", options.keep,
                     "copy model, config and compact record of what is finished there, such as to "
                     "results/lra")
          ->type_name("FOLDER");
  app.add_option("--set", options.overrides, "override a.b=c of all configs; may be repeated")
      ->type_name("A.B=C")
      ->allow_extra_args(false);
  app.add_flag("--tiny", selection.tiny,
               "small variants on made-up data, which a CPU learns in two minutes")
      ->excludes(keep);
  app.add_flag("--table", options.only_table, "only render what there is")->excludes(keep);
  app.add_flag("--quiet", options.quiet, "no progress, only the table");
  add_device_options(app, options.device);
  app.footer(
      "Runs what is not finished yet, one after another, and renders the paper's Table 1 with it.\n"
      "Runs lie in OUT/TASK/ROW.RECIPE/seed-N; OUT/report.html has their curves.\n\n"
      "Examples:\n"
      "  fmmformer reproduce lra --tiny\n"
      "  fmmformer reproduce lra --rows softmax,fmm2_band5 --device cuda --budget 9\n"
      "  fmmformer reproduce lra --tasks listops --recipes tuned --seeds 1,2,3 --device cuda\n"
      "  fmmformer reproduce lra --table --out results/lra");
}

void fill_in(ReproduceOptions& options) {
  LraSelection& selection = options.selection;
  const auto all = [](std::vector<std::string>& names, const auto& known) {
    if (names.empty()) names.assign(known.begin(), known.end());
  };
  all(selection.tasks, report::kLraTasks);
  if (selection.tiny && selection.rows.empty()) {
    selection.rows = {std::string(report::kLraRows.front()), std::string(report::kLraRows.back())};
  }
  all(selection.rows, report::kLraRows);
  if (selection.tiny && selection.recipes.empty())
    selection.recipes = {std::string(report::kLraRecipes.front())};
  all(selection.recipes, report::kLraRecipes);
  if (selection.seeds.empty() && !options.only_table) selection.seeds = {1};
  if (options.out.empty()) options.out = selection.tiny ? "runs/lra_tiny" : "runs/lra";
}

/// A run with what it computes.
struct PlannedRun {
  LraRun run;
  train::ExperimentConfig experiment;
};

fs::path tiny_data_folder(const ReproduceOptions& options, const std::string& task) {
  return fs::path(options.out) / "data" / task;
}

std::string how_to_get(const std::string& task, const std::string& program) {
  const std::string data = "\n  " + program + " data ";
  const auto& source = tasks::fetch::data_source(task);
  std::string text =
      data + "fetch " + task + data + "import " + task + " data/downloads/" + source.import_folder;
  if (task == "listops" || task == "pathfinder") {
    text += "\nor make it with" + data + "make " + task +
            (task == "listops" ? " --count 96000 --valid 2000 --test 2000"
                               : " --count 160000 --valid 20000 --test 20000");
  }
  return text;
}

/// Whether there is a test split; without the other two there is no run.
bool check_data(train::ExperimentConfig& experiment, const std::string& program) {
  const tasks::TaskName task = experiment.task.name;
  const fs::path folder = tasks::data_folder(experiment.task);
  for (const tasks::Split split : {tasks::Split::kTrain, tasks::Split::kValid}) {
    const fs::path file = tasks::cache_path(folder, split);
    if (!fs::exists(file)) {
      throw UsageError("there is no '" + file.string() + "'; bring the data here with" +
                       how_to_get(std::string(enum_name(task)), program));
    }
  }
  return fs::exists(tasks::cache_path(folder, tasks::Split::kTest));
}

PlannedRun planned(const LraRun& run, const ReproduceOptions& options, const std::string& program) {
  std::vector<std::string> overrides = {"train.seed=" + std::to_string(run.seed)};
  const auto task = enum_from_name<tasks::TaskName>(run.name.task);
  if (run.name.tiny) {
    const fs::path data = tiny_data_folder(options, run.name.task);
    make_tiny_data(task, data);
    std::ranges::copy(tiny_overrides(task, data), std::back_inserter(overrides));
  }
  std::ranges::copy(options.overrides, std::back_inserter(overrides));
  PlannedRun planned{run, train::load_experiment(find_config(run.name.preset()), overrides)};
  planned.experiment.name = run.name.text();
  if (!check_data(planned.experiment, program)) planned.experiment.train.test = false;
  if (progress_of(run.folder) != RunProgress::kNew)
    train::check_run_is_of(planned.experiment, run.folder);
  return planned;
}

/// Mistakes show before anything is trained.
std::vector<PlannedRun> plan(const ReproduceOptions& options, const std::string& program) {
  std::vector<PlannedRun> runs;
  for (const LraRun& run : lra_runs(options.selection, options.out))
    runs.push_back(planned(run, options, program));
  return runs;
}

train::RunOutcome train_one(const PlannedRun& planned, const train::TrainerOptions& settings,
                            const ReproduceOptions& options) {
  const auto& [run, experiment] = planned;
  const auto listener = make_progress(options.quiet ? ProgressStyle::kQuiet : ProgressStyle::kAuto);
  if (progress_of(run.folder) == RunProgress::kNew)
    return train::start_run(experiment, run.folder, settings, *listener);
  const std::string test = experiment.train.test ? "true" : "false";
  return train::resume_run(run.folder, {"train.test=" + test}, settings, *listener);
}

/// How the work ended.
struct Tally {
  size_t finished = 0, failed = 0;
  bool out_of_time = false;
  int signal = 0;
};

Tally train_all(const std::vector<PlannedRun>& runs, train::TrainerOptions settings,
                const ReproduceOptions& options) {
  if (options.budget >= 0) {
    settings.stop_at = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                          std::chrono::duration<double>(60 * options.budget));
  }
  Tally tally;
  for (size_t i = 0; i < runs.size(); ++i) {
    const LraRun& run = runs[i].run;
    RunProgress progress = progress_of(run.folder);
    const bool ended = progress == RunProgress::kFinished || progress == RunProgress::kFailed;
    if (!ended && settings.stop_at && Clock::now() >= *settings.stop_at) tally.out_of_time = true;
    if (!ended && !tally.out_of_time) {
      if (!options.quiet) {
        std::printf("\n%zu/%zu  %s, seed %ld\n", i + 1, runs.size(), run.name.text().c_str(),
                    run.seed);
      }
      settings.identity.created = utc_now();
      const train::RunOutcome outcome = train_one(runs[i], settings, options);
      tally.signal = outcome.signal;
      tally.out_of_time = outcome.status == train::RunStatus::kInterrupted;
      progress = progress_of(run.folder);
    }
    if (progress == RunProgress::kFailed) {
      ++tally.failed;
      std::fprintf(stderr, "note: %s, seed %ld, failed; remove '%s' to try it again\n",
                   run.name.text().c_str(), run.seed, run.folder.c_str());
    }
    if (progress != RunProgress::kFinished) continue;
    ++tally.finished;
    if (!options.keep.empty()) keep_lra_run(run, options.keep);
  }
  return tally;
}

void note_missing_tests(const std::vector<PlannedRun>& runs) {
  std::map<std::string, bool> told;
  for (const auto& [run, experiment] : runs) {
    if (experiment.train.test || !told.emplace(run.name.task, true).second) continue;
    std::fprintf(stderr, "note: %s has no test split here: its models are scored on valid alone\n",
                 run.name.task.c_str());
  }
}

void print_table(const std::vector<report::Record>& records, bool tiny) {
  std::printf(
      "\nLong Range Arena%s: accuracy in %%, the best on valid and that model's on test\n\n%s",
      tiny ? ", small variants" : "", lra_table(records).c_str());
}

int exit_code_of(const Tally& tally, size_t runs, const CommandLine& line) {
  if (tally.finished < runs) {
    std::fprintf(stderr, "%s: %zu of %zu runs are finished%s%s\n", line.command.c_str(),
                 tally.finished, runs,
                 tally.out_of_time && tally.signal == 0 ? " and the time is up" : "",
                 tally.finished + tally.failed < runs ? "; the same command goes on" : "");
  }
  if (tally.signal != 0) return kStoppedBySignal + tally.signal;
  return tally.failed > 0 ? kFailed : kDone;
}

int run_reproduce_lra(const CommandLine& line) {
  ReproduceOptions options;
  CLI::App app("Trains the models of the paper's Table 1, and renders it with what they reach.");
  add_options(app, options);
  if (!read_options(app, line)) return kDone;
  fill_in(options);
  if (!options.only_table) {
    keep_freed_memory();
    const c10::Device device = use_device(options.device);
    const std::vector<PlannedRun> runs = plan(options, line.program);
    note_missing_tests(runs);
    train::TrainerOptions settings{.device = device, .identity = run_identity(device, line.text())};
    settings.identity.overrides = options.overrides;
    const Tally tally = train_all(runs, settings, options);
    const auto records = lra_records(options.selection, options.out);
    if (!records.empty()) {
      print_table(records, options.selection.tiny);
      const fs::path page = fs::path(options.out) / "report.html";
      report::write_report({options.out}, page, {.title = "FMMformer on Long Range Arena"});
      std::printf("\nThe page: %s\n", page.c_str());
    }
    return exit_code_of(tally, runs.size(), line);
  }
  const auto records = lra_records(options.selection, options.out);
  if (records.empty()) {
    throw UsageError("'" + options.out +
                     "' has no runs of these tasks, rows and recipes; without "
                     "--table they are made");
  }
  print_table(records, options.selection.tiny);
  return kDone;
}

constexpr Command kCommands[] = {
    {"lra", run_reproduce_lra, "Long Range Arena: five tasks, five models (Table 1)"},
};
constexpr CommandTable kTable = {
    "Runs a table of the paper and renders it beside the paper's numbers.", kCommands,
    "fmmformer reproduce lra --tiny"};

}  // namespace

int run_reproduce(const CommandLine& line) { return dispatch(kTable, line); }

}  // namespace fmmformer::cli
