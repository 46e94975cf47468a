// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/device_options.h"
#include "cli/live_line.h"
#include "cli/run_options.h"
#include "fmmformer/core/random.h"
#include "train/scoring.h"

namespace fmmformer::cli {
namespace {

struct EvalOptions {
  RunOptions run;
  std::string split = "valid";
  int64_t batches = -1;  // none were named
  bool sliding = false;
  bool json = false;
  DeviceOptions device;
};

std::string folder_of(const RunOptions& options) {
  if (options.run.empty() == options.first.empty())
    throw UsageError("name one run folder, such as runs/copy/softmax_128");
  return options.run + options.first;
}

}  // namespace

int run_eval(const CommandLine& line) {
  EvalOptions options;
  CLI::App app("Scores a trained model on a split of its task.");
  add_run_options(app, options.run);
  app.add_option("--split", options.split, "valid (default), test or train")->type_name("SPLIT");
  require_at_least(
      app.add_option("--batches", options.batches,
                     "how many batches (default: as the run's config; 0: the whole split)")
          ->type_name("N"),
      0);
  app.add_flag("--sliding", options.sliding,
               "language models: a window for every token, so that each is predicted from a whole "
               "window before it, rather than windows without overlap; far slower");
  app.add_flag("--json", options.json, "one JSON object instead of text");
  add_device_options(app, options.device);
  app.footer(
      "Examples:\n  fmmformer eval runs/copy/softmax_128 --batches 50\n"
      "  fmmformer eval runs/wikitext2/softmax --split test --batches 0 --sliding");
  if (!read_options(app, line)) return kDone;

  const auto split = enum_from_name<tasks::Split>(options.split);
  const std::string folder = folder_of(options.run);
  const c10::Device device = use_device(options.device);
  const train::TrainedModel trained = load_trained(folder, options.run, device);
  const train::TrainConfig& config = trained.experiment.train;
  const auto task = tasks::make_task(trained.experiment.task,
                                     derive_seed(static_cast<uint64_t>(config.seed), "task"));
  const train::EvaluationPlan plan{
      .split = split,
      .order = options.sliding ? tasks::Order::kSliding : tasks::Order::kStored,
      .batches = options.batches < 0 ? config.evaluation_batches : options.batches,
      .batch_size = config.batch_size / config.accumulate};
  const LiveLine live;
  const auto stream = train::make_work_stream(device);
  train::Evaluator evaluator(*trained.model, *task,
                             {.device = device,
                              .cuda_graph = config.cuda_graph,
                              .no_graph_because = train::graph_obstacle(trained.experiment.model)});
  const train::Score score = evaluator.score(plan, [&](int64_t done, int64_t all) {
    live.show("batch " + std::to_string(done) + "/" + std::to_string(all));
  });
  live.clear();
  const train::Metric& metric = train::metric_for(trained.experiment.model);
  if (options.json) {
    const nlohmann::ordered_json result = {{"run", folder},
                                           {"step", trained.step},
                                           {"split", options.split},
                                           {"loss", score.mean_loss()},
                                           {std::string(metric.name), metric.value(score)},
                                           {"count", score.count}};
    std::printf("%s\n", result.dump().c_str());
  } else {
    std::printf("%s, step %ld, %s: loss %.4f  %s %.2f%s  (%.0f predictions)\n", folder.c_str(),
                trained.step, options.split.c_str(), score.mean_loss(),
                std::string(metric.name).c_str(), metric.value(score),
                metric.unit.empty() ? "" : (" " + std::string(metric.unit)).c_str(), score.count);
  }
  return kDone;
}

}  // namespace fmmformer::cli
