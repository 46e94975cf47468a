// SPDX-License-Identifier: Apache-2.0
#include "cli/run_options.h"

#include <ATen/ATen.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "cli/command.h"

namespace fmmformer::cli {

void add_run_options(CLI::App& app, RunOptions& options) {
  app.add_option("RUN", options.first, "the run's folder");
  app.add_option("--run", options.run, "the same, by name")->type_name("FOLDER");
  require_at_least(
      app.add_option("--step", options.step, "which checkpoint (default: the best, else the last)")
          ->type_name("N"),
      0);
}

std::string run_folder_of(const RunOptions& options, const std::string& example) {
  if (options.run.empty() == options.first.empty())
    throw UsageError("name one run folder, such as " + example);
  return options.run + options.first;
}

train::TrainedModel load_trained(const std::string& folder, const RunOptions& options,
                                 const c10::Device& device) {
  train::TrainedModel trained = train::load_run(
      folder, options.step < 0 ? std::nullopt : std::optional(options.step), device);
  if (!trained.note.empty())
    std::fprintf(stderr, "note: %s; --step chooses another\n", trained.note.c_str());
  return trained;
}

train::TrainedModel in_full_precision(train::TrainedModel trained) {
  if (trained.model->parameters().front().is_cpu()) trained.model->to(at::kFloat);
  return trained;
}

}  // namespace fmmformer::cli
