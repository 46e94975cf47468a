// SPDX-License-Identifier: Apache-2.0
// `reproduce lra`: the paper's Table 1.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>

#include "cli/data_commands.h"
#include "cli/lra_plan.h"
#include "cli/lra_table.h"
#include "cli/presets.h"
#include "cli/reproduce_commands.h"
#include "cli/reproduce_runs.h"
#include "cli/tiny_lra.h"
#include "report/write_report.h"
#include "tasks/fetch/sources.h"

namespace fmmformer::cli {
namespace {

namespace fs = std::filesystem;

struct LraOptions : ReproduceOptions {
  LraSelection selection;
};

void add_options(CLI::App& app, LraOptions& options) {
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
  CLI::Option* keep =
      add_reproduce_options(app, options, "runs/lra, with --tiny runs/lra_tiny", "results/lra");
  app.add_flag("--tiny", selection.tiny,
               "small variants on made-up data, which a CPU learns in two minutes")
      ->excludes(keep);
  app.footer(
      "Runs what is not finished yet, one after another, and renders the paper's Table 1 with it.\n"
      "Runs lie in OUT/TASK/ROW.RECIPE/seed-N; OUT/report.html has their curves.\n"
      "A tuned recipe that is the published one is not trained again.\n\n"
      "Examples:\n"
      "  fmmformer reproduce lra --tiny\n"
      "  fmmformer reproduce lra --rows softmax,fmm2_band5 --device cuda --budget 9\n"
      "  fmmformer reproduce lra --tasks listops --recipes tuned --seeds 1,2,3 --device cuda\n"
      "  fmmformer reproduce lra --table --out results/lra");
}

void fill_in(LraOptions& options) {
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
  if (options.seeds.empty() && !options.only_table) options.seeds = {1};
  selection.seeds = options.seeds;
  if (options.out.empty()) options.out = selection.tiny ? "runs/lra_tiny" : "runs/lra";
}

fs::path tiny_data_folder(const LraOptions& options, const std::string& task) {
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

PlannedRun planned(const LraRun& run, const LraOptions& options, const std::string& program) {
  std::vector<std::string> overrides = {"train.seed=" + std::to_string(run.seed)};
  const auto task = enum_from_name<tasks::TaskName>(run.name.task);
  if (run.name.tiny) {
    const fs::path data = tiny_data_folder(options, run.name.task);
    make_tiny_data(task, data);
    std::ranges::copy(tiny_overrides(task, data), std::back_inserter(overrides));
  }
  std::ranges::copy(options.overrides, std::back_inserter(overrides));
  PlannedRun planned{
      .name = run.name.text(),
      .seed = run.seed,
      .folder = run.folder,
      .experiment = train::load_experiment(find_config(run.name.preset()), overrides)};
  planned.experiment.name = run.name.text();
  if (!check_data(planned.experiment, program)) planned.experiment.train.test = false;
  check_folder(planned);
  return planned;
}

/// Mistakes show before anything is trained.
std::vector<PlannedRun> plan(const std::vector<LraRun>& runs, const LraOptions& options,
                             const std::string& program) {
  std::vector<PlannedRun> planned_runs;
  for (const LraRun& run : runs) planned_runs.push_back(planned(run, options, program));
  return planned_runs;
}

void note_missing_tests(const std::vector<PlannedRun>& runs) {
  std::set<tasks::TaskName> told;
  for (const PlannedRun& run : runs) {
    const tasks::TaskName task = run.experiment.task.name;
    if (run.experiment.train.test || !told.insert(task).second) continue;
    std::fprintf(stderr, "note: %s has no test split here: its models are scored on valid alone\n",
                 std::string(enum_name(task)).c_str());
  }
}

/// "retrieval/linear, retrieval/fmm2_band5": where one run stands for both recipes.
std::string shared_recipes(const std::vector<report::Record>& records) {
  std::string list;
  std::set<std::string> told;
  for (const report::Record& record : records) {
    const auto name = report::lra_name(record.name);
    if (!name || record.trained_as.empty() || !told.insert(record.name).second) continue;
    list += (list.empty() ? "" : ", ") + name->task + "/" + name->row;
  }
  return list;
}

void print_table(const std::vector<report::Record>& records, bool tiny) {
  std::printf(
      "\nLong Range Arena%s: accuracy in %%, the best on valid and that model's on test\n\n%s",
      tiny ? ", small variants" : "", lra_table(records).c_str());
  if (const std::string shared = shared_recipes(records); !shared.empty()) {
    std::printf("\ntuned is the published recipe, and its run: %s\n", shared.c_str());
  }
}

}  // namespace

int run_reproduce_lra(const CommandLine& line) {
  LraOptions options;
  CLI::App app("Trains the models of the paper's Table 1, and renders it with what they reach.");
  add_options(app, options);
  if (!read_options(app, line)) return kDone;
  fill_in(options);
  if (!options.only_table) {
    const std::vector<LraRun> runs = lra_runs(options.selection, options.out);
    const std::vector<PlannedRun> planned_runs = plan(runs, options, line.program);
    note_missing_tests(planned_runs);
    const Tally tally = train_all(planned_runs, options, line, [&](const PlannedRun& run) {
      if (options.keep.empty()) return;
      keep_lra_run(*std::ranges::find(runs, run.folder, &LraRun::folder), options.keep);
    });
    const auto records = lra_records(options.selection, options.out);
    if (!records.empty()) {
      print_table(records, options.selection.tiny);
      const fs::path page = fs::path(options.out) / "report.html";
      report::write_report(
          {options.out}, page,
          {.title = "FMMformer on Long Range Arena", .lra_stand_ins = lra_stand_ins()});
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

}  // namespace fmmformer::cli
