// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/presets.h"
#include "train/experiment.h"

namespace fmmformer::cli {

int run_presets(const CommandLine& line) {
  bool as_json = false;
  std::string filter;
  CLI::App app("Lists the experiments that ship with the project, and what each reproduces.");
  app.add_option("FILTER", filter, "only those with this in their name");
  app.add_flag("--json", as_json, "as JSON");
  app.footer("Example:\n  fmmformer presets copy");
  if (!read_options(app, line)) return kDone;

  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const std::string& name : presets_with(filter)) {
    const train::ExperimentConfig experiment = train::load_experiment(find_config(name));
    if (as_json) {
      all.push_back(
          {{"name", name}, {"about", experiment.about}, {"reproduces", experiment.reproduces}});
    } else {
      std::printf(
          "%-26s %s%s\n", name.c_str(), experiment.about.c_str(),
          experiment.reproduces.empty() ? "" : ("  [" + experiment.reproduces + "]").c_str());
    }
  }
  if (as_json) std::printf("%s\n", all.dump(2).c_str());
  return kDone;
}

int run_config(const CommandLine& line) {
  std::string what;
  std::vector<std::string> overrides;
  bool describe = false;
  CLI::App app(
      "Prints a config as the trainer would use it: every key, defaults and --set included.");
  app.add_option("CONFIG", what, "a TOML file or a preset's name");
  app.add_option("--set", overrides, "override a.b=c; may be repeated")
      ->type_name("A.B=C")
      ->allow_extra_args(false);
  app.add_flag("--describe", describe, "every key with its kind, default, range and meaning");
  app.footer(
      "Examples:\n  fmmformer config copy/fmm1_band30_512 --set train.steps=500 > my.toml\n"
      "  fmmformer config --describe");
  if (!read_options(app, line)) return kDone;
  if (describe) {
    for (const FieldDescription& field : describe_fields<train::ExperimentConfig>()) {
      std::printf("%s\n    %s%s\n    %s%s\n", field.path.c_str(), field.kind.c_str(),
                  field.allowed.empty() ? "" : (", " + field.allowed).c_str(), field.help.c_str(),
                  field.initial.empty() ? "" : (" (default " + field.initial + ")").c_str());
    }
    return kDone;
  }
  if (what.empty()) throw UsageError("name a config, or ask with --describe");
  std::printf("%s",
              train::experiment_toml(train::load_experiment(find_config(what), overrides)).c_str());
  return kDone;
}

}  // namespace fmmformer::cli
