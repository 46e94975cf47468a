// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/device_options.h"
#include "cli/live_line.h"
#include "cli/run_options.h"
#include "cli/unseen_data.h"
#include "fmmformer/core/random.h"
#include "train/run_vocabulary.h"
#include "train/scoring.h"

namespace fmmformer::cli {
namespace {

struct EvalOptions {
  RunOptions run;
  std::string split;  // none was named
  UnseenData data;
  int64_t batches = -1;  // none were named
  bool sliding = false;
  bool json = false;
  DeviceOptions device;
};

void add_options(CLI::App& app, EvalOptions& options) {
  add_run_options(app, options.run);
  CLI::Option* split = app.add_option("--split", options.split, "valid (default), test or train")
                           ->type_name("SPLIT");
  CLI::Option* data =
      app.add_option("--data", options.data.files,
                     "score these files instead: as `data import` reads them, or one .fmmdata; may "
                     "be repeated; not for language models, which read data/TASK/test.fmmtokens")
          ->type_name("FILE")
          ->allow_extra_args(false)
          ->excludes(split);
  app.add_option("--documents", options.data.documents,
                 "retrieval, with --data: the file with `id TAB text`")
      ->type_name("FILE")
      ->needs(data);
  require_at_least(
      app.add_option("--batches", options.batches,
                     "how many batches (default: as the run's config, of --data all; 0: the whole "
                     "split)")
          ->type_name("N"),
      0);
  app.add_flag("--sliding", options.sliding,
               "language models: a window for every token, so that each is predicted from a whole "
               "window before it, rather than windows without overlap; far slower");
  app.add_flag("--json", options.json, "one JSON object instead of text");
  add_device_options(app, options.device);
  app.footer(
      "RUN may also be a folder of results/lra, or another that `reproduce --keep` made, with "
      "model.safetensors and config.toml.\n\n"
      "Examples:\n"
      "  fmmformer eval runs/copy/softmax_128 --batches 50\n"
      "  fmmformer eval runs/wikitext2/softmax --split test --batches 0 --sliding\n"
      "  fmmformer eval --run results/lra/listops/fmm2_band5.tuned --data basic_test.tsv\n"
      "  fmmformer eval --run results/lra/retrieval/softmax.published --data pairs.test.tsv.xz "
      "--documents docs.tsv.xz");
}

/// What is scored, and what it is called.
struct Examples {
  std::unique_ptr<tasks::Task> task;
  tasks::Split split = tasks::Split::kValid;
  std::string name;
};

Examples examples_for(const EvalOptions& options, const train::ExperimentConfig& experiment) {
  if (!options.data.files.empty()) {
    UnseenTask unseen = task_over(options.data, experiment.task);
    return {std::move(unseen.task), unseen.split, join_names(options.data.files)};
  }
  const auto split =
      options.split.empty() ? tasks::Split::kValid : enum_from_name<tasks::Split>(options.split);
  const auto seed = static_cast<uint64_t>(experiment.train.seed);
  return {tasks::make_task(experiment.task, derive_seed(seed, "task")), split,
          std::string(enum_name(split))};
}

train::EvaluationPlan plan_of(const EvalOptions& options, const train::TrainConfig& train,
                              tasks::Split split) {
  const int64_t usual = options.data.files.empty() ? train.evaluation_batches : 0;
  return {.split = split,
          .order = options.sliding ? tasks::Order::kSliding : tasks::Order::kStored,
          .batches = options.batches < 0 ? usual : options.batches,
          .batch_size = train.batch_size / train.accumulate};
}

}  // namespace

int run_eval(const CommandLine& line) {
  EvalOptions options;
  CLI::App app("Scores a trained model on a split of its task, or on files that it has not seen.");
  add_options(app, options);
  if (!read_options(app, line)) return kDone;

  if (!options.split.empty()) enum_from_name<tasks::Split>(options.split);  // before the model
  const std::string folder = run_folder_of(options.run, "runs/copy/softmax_128");
  const c10::Device device = use_device(options.device);
  const train::TrainedModel trained = load_trained(folder, options.run, device);
  const Examples examples = examples_for(options, trained.experiment);
  train::check_vocabulary(train::RunPaths(folder), trained.experiment);
  const LiveLine live;
  const auto stream = train::make_work_stream(device);
  train::Evaluator evaluator(*trained.model, *examples.task,
                             {.device = device,
                              .cuda_graph = trained.experiment.train.cuda_graph,
                              .cutoffs = train::cutoffs_of(trained.experiment.model)});
  const train::EvaluationPlan plan = plan_of(options, trained.experiment.train, examples.split);
  const train::Score score = evaluator.score(plan, [&](int64_t done, int64_t all) {
    live.show("batch " + std::to_string(done) + "/" + std::to_string(all));
  });
  live.clear();
  const train::Metric& metric =
      train::metric_for(trained.experiment.task.name, trained.experiment.model);
  if (options.json) {
    const nlohmann::ordered_json result = {
        {"run", folder},
        {"step", trained.step},
        {"split", examples.name},
        {"sliding", options.sliding},
        {"batches", train::evaluation_batches(*examples.task, plan)},
        {"loss", score.mean_loss()},
        {std::string(metric.name), metric.value(score)},
        {"count", score.count}};
    std::printf("%s\n", result.dump().c_str());
  } else {
    std::printf("%s, step %ld, %s%s: loss %.4f  %s %.2f%s  (%.0f predictions)\n", folder.c_str(),
                trained.step, examples.name.c_str(), options.sliding ? ", sliding windows" : "",
                score.mean_loss(), std::string(metric.name).c_str(), metric.value(score),
                metric.unit.empty() ? "" : (" " + std::string(metric.unit)).c_str(), score.count);
  }
  return kDone;
}

}  // namespace fmmformer::cli
