// SPDX-License-Identifier: Apache-2.0
#include "cli/analysed_run.h"

#include <ATen/ATen.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "fmmformer/core/atomic_file.h"
#include "fmmformer/core/random.h"
#include "train/record_edit.h"
#include "train/run_vocabulary.h"

namespace fmmformer::cli {
namespace {

using Json = nlohmann::ordered_json;

std::unique_ptr<tasks::Task> task_of(const train::ExperimentConfig& experiment) {
  const auto seed = static_cast<uint64_t>(experiment.train.seed);
  return tasks::make_task(experiment.task, derive_seed(seed, "task"));
}

void write_json(const std::string& path, const Json& content) {
  if (!path.empty()) write_file_atomically(path, content.dump(2) + "\n");
}

}  // namespace

void add_analysis_options(CLI::App& app, AnalysisOptions& options) {
  add_run_options(app, options.run);
  app.add_option("--split", options.split, "valid (default), test or train")->type_name("SPLIT");
  require_at_least(app.add_option("--length", options.length,
                                  "first tokens of an example that are looked at (default: 256)")
                       ->type_name("N"),
                   2);
  app.add_option("--json", options.json, "write the numbers to this file too")->type_name("FILE");
  app.add_flag("--no-save", options.leave_record, "leave the run's record.json as it is");
  add_device_options(app, options.device);
}

AnalysedRun::AnalysedRun(const AnalysisOptions& options)
    : options_(options),
      folder_(run_folder_of(options.run, "runs/wikitext2/softmax")),
      split_(enum_from_name<tasks::Split>(options.split)),
      device_(use_device(options.device)),
      trained_(in_full_precision(load_trained(folder_, options.run, device_))),
      task_(task_of(trained_.experiment)) {
  check_output_file("--json", options.json);
  if (!options.leave_record) train::check_has_record(folder_);
  train::check_vocabulary(train::RunPaths(folder_), trained_.experiment);
}

std::string AnalysedRun::title() const {
  return folder_ + ", step " + std::to_string(trained_.step);
}

int64_t AnalysedRun::examples(int64_t wanted) const {
  const int64_t there = task_->examples(split_);
  return there == 0 ? wanted : std::min(wanted, there);
}

Batch AnalysedRun::example(int64_t number) const {
  return task_->batch({.split = split_, .index = number, .size = 1});
}

ModelInputs AnalysedRun::inputs(int64_t number) const {
  const Batch batch = example(number);
  return first_tokens(batch_tensors(batch, device_).inputs,
                      std::min(options_.length, batch.real_length()));
}

void AnalysedRun::keep(std::string_view what, Json findings) const {
  Json whole = {{"step", trained_.step}, {"split", options_.split}, {"length", options_.length}};
  whole.update(findings);
  write_json(options_.json, whole);
  if (options_.leave_record) return;
  train::edit_record(folder_, [&](Json& record) { record["analysis"][std::string(what)] = whole; });
}

void AnalysedRun::keep_members(Json members) const {
  write_json(options_.json, members);
  if (options_.leave_record) return;
  train::edit_record(folder_, [&](Json& record) { record.update(members); });
}

}  // namespace fmmformer::cli
