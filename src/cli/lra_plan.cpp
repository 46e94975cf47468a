// SPDX-License-Identifier: Apache-2.0
#include "cli/lra_plan.h"

#include <algorithm>
#include <set>
#include <utility>

#include "cli/command.h"
#include "cli/presets.h"
#include "cli/reproduce_runs.h"
#include "fmmformer/core/config.h"
#include "train/experiment.h"

namespace fmmformer::cli {
namespace {

namespace fs = std::filesystem;
using report::LraName;

std::vector<LraName> lra_presets() {
  std::vector<LraName> found;
  for (const std::string& preset : presets_with("lra/")) {
    if (const auto name = report::lra_name(preset)) found.push_back(*name);
  }
  return found;
}

void check_selection(const LraSelection& selection, const std::vector<LraName>& presets) {
  std::set<std::string> tasks, rows, recipes;
  for (const LraName& preset : presets) {
    tasks.insert(preset.task), rows.insert(preset.row), recipes.insert(preset.recipe);
  }
  const auto check = [](const char* option, const std::vector<std::string>& given,
                        const std::set<std::string>& known) {
    check_names(option, given, {known.begin(), known.end()});
  };
  check("--tasks", selection.tasks, tasks);
  check("--rows", selection.rows, rows);
  check("--recipes", selection.recipes, recipes);
}

/// OUT/TASK/ROW.RECIPE
fs::path folder_of(const fs::path& out, const LraName& name) {
  return out / name.task / (name.row + "." + name.recipe);
}

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

/// All that training depends on, as text.
std::string recipe_text(const LraName& name) {
  train::ExperimentConfig experiment = train::load_experiment(find_config(name.preset()), {});
  experiment.name.clear();
  experiment.about.clear();
  return to_toml(config_value(experiment));
}

}  // namespace

LraName trained_as(const LraName& name) {
  LraName published = name;
  published.recipe = report::kLraRecipes.front();
  const bool both = name.recipe == report::kLraRecipes.back() &&
                    std::ranges::any_of(lra_presets(), [&](const LraName& preset) {
                      return preset.preset() == published.preset();
                    });
  return both && recipe_text(name) == recipe_text(published) ? published : name;
}

std::map<std::string, std::string> lra_stand_ins() {
  std::map<std::string, std::string> stand_ins;
  try {
    for (const LraName& preset : lra_presets()) {
      const LraName trained = trained_as(preset);
      if (trained != preset) stand_ins[preset.text()] = trained.text();
    }
  } catch (const std::exception&) {
    return {};
  }
  return stand_ins;
}

std::vector<LraRun> lra_runs(const LraSelection& selection, const fs::path& out) {
  std::vector<LraName> names;
  for (const LraName& name : names_of(selection)) {
    const LraName trained = trained_as(name);
    if (std::ranges::find(names, trained) == names.end()) names.push_back(trained);
  }
  std::vector<LraRun> runs;
  for (const int64_t seed : selection.seeds) {
    for (const LraName& name : names) {
      runs.push_back(
          {.name = name, .seed = seed, .folder = folder_of(out, name) / seed_folder(seed)});
    }
  }
  return runs;
}

std::vector<report::Record> lra_records(const LraSelection& selection, const fs::path& out) {
  std::vector<report::Record> records;
  const auto records_of = [&](const LraName& name) {
    auto found = records_of_seeds(folder_of(out, name), selection.seeds);
    // A small variant's folder is called like the experiment's own.
    std::erase_if(found, [&](const report::Record& one) { return one.name != name.text(); });
    return found;
  };
  for (const LraName& name : names_of(selection)) {
    std::vector<report::Record> own = records_of(name);
    if (own.empty()) {
      own = records_of(trained_as(name));
      for (report::Record& record : own) {
        record.trained_as = std::exchange(record.name, name.text());
      }
    }
    std::ranges::move(own, std::back_inserter(records));
  }
  return records;
}

void keep_lra_run(const LraRun& run, const fs::path& keep) {
  keep_seed(run.folder, run.seed, folder_of(keep, run.name));
}

}  // namespace fmmformer::cli
