// SPDX-License-Identifier: Apache-2.0
#include "cli/reproduce_runs.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/run_identity.h"
#include "cli/train_progress.h"
#include "fmmformer/core/allocator.h"
#include "fmmformer/core/named_enum.h"
#include "fmmformer/core/utc_time.h"
#include "train/kept_run.h"
#include "train/run_folder.h"
#include "train/trainer.h"

namespace fmmformer::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using nlohmann::ordered_json;
using train::RunPaths;
using train::RunStatus;

train::RunOutcome train_one(const PlannedRun& run, const train::TrainerOptions& settings,
                            const ReproduceOptions& options) {
  const auto listener = make_progress(options.quiet ? ProgressStyle::kQuiet : ProgressStyle::kAuto);
  if (progress_of(run.folder) == RunProgress::kNew)
    return train::start_run(run.experiment, run.folder, settings, *listener);
  const std::string test = run.experiment.train.test ? "true" : "false";
  return train::resume_run(run.folder, {"train.test=" + test}, settings, *listener);
}

train::TrainerOptions settings_of(const ReproduceOptions& options, const CommandLine& line) {
  keep_freed_memory();
  const c10::Device device = use_device(options.device);
  train::TrainerOptions settings{.device = device, .identity = run_identity(device, line.text())};
  settings.identity.overrides = options.overrides;
  if (options.budget >= 0) {
    settings.stop_at = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                          std::chrono::duration<double>(60 * options.budget));
  }
  return settings;
}

/// The higher the better; a record without a metric is behind all others.
double merit(const ordered_json& record) {
  using Pointer = ordered_json::json_pointer;
  const Pointer metric("/result/best_metric");
  // Not a number becomes null in JSON.
  if (!record.contains(metric) || !record[metric].is_number())
    return -std::numeric_limits<double>::infinity();
  const bool is_cost = !record.value(Pointer("/metric/higher_is_better"), true);
  return (is_cost ? -1 : 1) * record[metric].get<double>();
}

}  // namespace

CLI::Option* add_reproduce_options(CLI::App& app, ReproduceOptions& options,
                                   const std::string& runs, const std::string& results) {
  require_at_least(
      app.add_option("--seeds", options.seeds, "numbers (default: 1; with --table all there are)")
          ->type_name("N,..")
          ->delimiter(','),
      0);
  require_number_at_least(
      app.add_option("--budget", options.budget,
                     "minutes: after these the run that is under way is saved, and none begins; "
                     "the same command goes on")
          ->type_name("MINUTES"),
      0);
  app.add_option("--out", options.out, "folder of the runs (default: " + runs + ")")
      ->type_name("FOLDER");
  CLI::Option* keep =
      app.add_option(
             "--keep", options.keep,
             "copy model, config and compact record of what is finished there, such as to " +
                 results)
          ->type_name("FOLDER");
  app.add_option("--set", options.overrides, "override a.b=c of all configs; may be repeated")
      ->type_name("A.B=C")
      ->allow_extra_args(false);
  app.add_flag("--table", options.only_table, "only render what there is")->excludes(keep);
  app.add_flag("--quiet", options.quiet, "no progress, only the table");
  add_device_options(app, options.device);
  return keep;
}

void check_folder(const PlannedRun& run) {
  if (progress_of(run.folder) != RunProgress::kNew)
    train::check_run_is_of(run.experiment, run.folder);
}

RunProgress progress_of(const fs::path& run) {
  const RunPaths paths(run);
  if (!fs::exists(paths.config())) return RunProgress::kNew;
  const auto status = paths.read_record().value("status", "");
  if (status == enum_name(RunStatus::kFinished)) return RunProgress::kFinished;
  return status == enum_name(RunStatus::kFailed) ? RunProgress::kFailed : RunProgress::kBegun;
}

Tally train_all(const std::vector<PlannedRun>& runs, const ReproduceOptions& options,
                const CommandLine& line, const std::function<void(const PlannedRun&)>& finished) {
  train::TrainerOptions settings = settings_of(options, line);
  Tally tally;
  for (size_t i = 0; i < runs.size(); ++i) {
    const PlannedRun& run = runs[i];
    RunProgress progress = progress_of(run.folder);
    const bool ended = progress == RunProgress::kFinished || progress == RunProgress::kFailed;
    if (!ended && settings.stop_at && Clock::now() >= *settings.stop_at) tally.out_of_time = true;
    if (!ended && !tally.out_of_time) {
      if (!options.quiet) {
        std::printf("\n%zu/%zu  %s, seed %ld\n", i + 1, runs.size(), run.name.c_str(), run.seed);
      }
      settings.identity.created = utc_now();
      const train::RunOutcome outcome = train_one(run, settings, options);
      tally.signal = outcome.signal;
      tally.out_of_time = outcome.status == RunStatus::kInterrupted;
      progress = progress_of(run.folder);
    }
    if (progress == RunProgress::kFailed) {
      ++tally.failed;
      std::fprintf(stderr, "note: %s, seed %ld, failed; remove '%s' to try it again\n",
                   run.name.c_str(), run.seed, run.folder.c_str());
    }
    if (progress != RunProgress::kFinished) continue;
    ++tally.finished;
    finished(run);
  }
  return tally;
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

std::string seed_folder(int64_t seed) { return "seed-" + std::to_string(seed); }

std::vector<report::Record> records_of_seeds(const fs::path& folder,
                                             const std::vector<int64_t>& seeds) {
  std::vector<fs::path> found = {RunPaths(folder).record()};
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    found.push_back(RunPaths(entry.path()).record());
  }
  std::ranges::sort(found);
  std::vector<report::Record> records;
  for (const fs::path& file : found) {
    if (!fs::exists(file)) continue;
    report::Record record = report::read_record(file);
    const bool wanted = seeds.empty() || std::ranges::find(seeds, record.seed) != seeds.end();
    if (wanted) records.push_back(std::move(record));
  }
  return records;
}

void keep_seed(const fs::path& run, int64_t seed, const fs::path& place) {
  const ordered_json kept = RunPaths(place).read_record();
  const int64_t kept_seed = kept.value("seed", seed);
  const bool is_best = kept_seed == seed || merit(RunPaths(run).read_record()) > merit(kept);
  if (!is_best) {
    train::keep_record(run, place / seed_folder(seed));
    return;
  }
  if (kept_seed != seed) train::keep_record(place, place / seed_folder(kept_seed));
  train::keep_run(run, place);
  fs::remove_all(place / seed_folder(seed));
}

void check_names(const char* option, const std::vector<std::string>& given,
                 const std::vector<std::string>& known) {
  for (const std::string& name : given) {
    if (std::ranges::find(known, name) != known.end()) continue;
    throw UsageError(std::string(option) + ": there is no '" + name + "'" +
                     did_you_mean(name, known) + " (there are: " + join_names(known) + ")");
  }
}

}  // namespace fmmformer::cli
