// SPDX-License-Identifier: Apache-2.0
#include "cli/lra_plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "cli/command.h"
#include "cli/presets.h"
#include "fmmformer/core/named_enum.h"
#include "train/kept_run.h"
#include "train/progress.h"
#include "train/run_folder.h"

namespace fmmformer::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using report::LraName;
using train::RunPaths;
using train::RunStatus;

std::vector<LraName> lra_presets() {
  std::vector<LraName> found;
  for (const std::string& preset : presets_with("lra/")) {
    if (const auto name = report::lra_name(preset)) found.push_back(*name);
  }
  return found;
}

void check_names(const char* option, const std::vector<std::string>& given,
                 const std::set<std::string>& known) {
  const std::vector<std::string> all(known.begin(), known.end());
  for (const std::string& name : given) {
    if (known.contains(name)) continue;
    throw UsageError(std::string(option) + ": there is no '" + name + "'" +
                     did_you_mean(name, all) + " (there are: " + join_names(all) + ")");
  }
}

void check_selection(const LraSelection& selection, const std::vector<LraName>& presets) {
  std::set<std::string> tasks, rows, recipes;
  for (const LraName& preset : presets) {
    tasks.insert(preset.task), rows.insert(preset.row), recipes.insert(preset.recipe);
  }
  check_names("--tasks", selection.tasks, tasks);
  check_names("--rows", selection.rows, rows);
  check_names("--recipes", selection.recipes, recipes);
}

/// OUT/TASK/ROW.RECIPE
fs::path folder_of(const fs::path& out, const LraName& name) {
  return out / name.task / (name.row + "." + name.recipe);
}

std::string seed_folder(int64_t seed) { return "seed-" + std::to_string(seed); }

/// The experiments of the selection, recipe by recipe, task by task.
std::vector<LraName> names_of(const LraSelection& selection) {
  const std::vector<LraName> presets = lra_presets();
  check_selection(selection, presets);
  std::vector<LraName> names;
  for (const std::string& recipe : selection.recipes) {
    for (const std::string& task : selection.tasks) {
      for (const std::string& row : selection.rows) {
        LraName name{.task = task, .row = row, .recipe = recipe};
        const bool there = std::ranges::find(presets, name) != presets.end();
        name.tiny = selection.tiny;
        if (there) names.push_back(std::move(name));
      }
    }
  }
  if (names.empty()) {
    throw UsageError(
        "no config has these tasks, rows and recipes together; `fmmformer presets lra/` "
        "lists what there is");
  }
  return names;
}

double best_metric(const ordered_json& record) {
  return record.value(ordered_json::json_pointer("/result/best_metric"), 0.0);
}

}  // namespace

std::vector<LraRun> lra_runs(const LraSelection& selection, const fs::path& out) {
  const std::vector<LraName> names = names_of(selection);
  std::vector<LraRun> runs;
  for (const int64_t seed : selection.seeds) {
    for (const LraName& name : names) {
      runs.push_back(
          {.name = name, .seed = seed, .folder = folder_of(out, name) / seed_folder(seed)});
    }
  }
  return runs;
}

RunProgress progress_of(const fs::path& run) {
  const RunPaths paths(run);
  if (!fs::exists(paths.config())) return RunProgress::kNew;
  const auto status = paths.read_record().value("status", "");
  if (status == enum_name(RunStatus::kFinished)) return RunProgress::kFinished;
  return status == enum_name(RunStatus::kFailed) ? RunProgress::kFailed : RunProgress::kBegun;
}

std::vector<report::Record> lra_records(const LraSelection& selection, const fs::path& out) {
  std::vector<report::Record> records;
  for (const LraName& name : names_of(selection)) {
    const fs::path folder = folder_of(out, name);
    std::vector<fs::path> found = {RunPaths(folder).record()};
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(folder, none)) {
      found.push_back(RunPaths(entry.path()).record());
    }
    std::ranges::sort(found);
    for (const fs::path& file : found) {
      if (!fs::exists(file)) continue;
      report::Record record = report::read_record(file);
      const bool wanted = selection.seeds.empty() ||
                          std::ranges::find(selection.seeds, record.seed) != selection.seeds.end();
      if (wanted) records.push_back(std::move(record));
    }
  }
  return records;
}

void keep_lra_run(const LraRun& run, const fs::path& keep) {
  const fs::path place = folder_of(keep, run.name);
  const ordered_json kept = RunPaths(place).read_record();
  const int64_t kept_seed = kept.value("seed", run.seed);
  const bool better =
      kept_seed == run.seed || best_metric(RunPaths(run.folder).read_record()) > best_metric(kept);
  if (!better) {
    train::keep_record(run.folder, place / seed_folder(run.seed));
    return;
  }
  if (kept_seed != run.seed) train::keep_record(place, place / seed_folder(kept_seed));
  train::keep_run(run.folder, place);
  fs::remove_all(place / seed_folder(run.seed));
}

}  // namespace fmmformer::cli
