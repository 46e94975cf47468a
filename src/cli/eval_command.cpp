// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/device_options.h"
#include "cli/live_line.h"
#include "fmmformer/core/random.h"
#include "train/model_files.h"
#include "train/scoring.h"

namespace fmmformer::cli {
namespace {

struct EvalOptions {
  std::string run;
  int64_t step = -1;
  std::string split = "valid";
  int64_t batches = -1;
  bool json = false;
  DeviceOptions device;
};

}  // namespace

int run_eval(const CommandLine& line) {
  EvalOptions options;
  CLI::App app("Scores a trained model on a split of its task.");
  app.add_option("--run", options.run, "the run's folder")->required()->type_name("FOLDER");
  app.add_option("--step", options.step, "which checkpoint (default: the best, else the last)")
      ->type_name("N");
  app.add_option("--split", options.split, "valid (default), test or train")
      ->check(CLI::IsMember({"valid", "test", "train"}));
  app.add_option("--batches", options.batches,
                 "how many batches (default: as the run's config; 0: the whole split)")
      ->type_name("N");
  app.add_flag("--json", options.json, "one JSON object instead of text");
  add_device_options(app, options.device);
  app.footer("Example:\n  fmmformer eval --run runs/copy/softmax_128 --batches 50");
  if (!read_options(app, line)) return kDone;

  const c10::Device device = use_device(options.device);
  const train::TrainedModel trained = train::load_run(
      options.run, options.step < 0 ? std::nullopt : std::optional(options.step), device);
  const train::TrainConfig& config = trained.experiment.train;
  const auto task = tasks::make_task(trained.experiment.task,
                                     derive_seed(static_cast<uint64_t>(config.seed), "task"));
  const train::EvaluationPlan plan{
      .split = options.split == "train"  ? tasks::Split::kTrain
               : options.split == "test" ? tasks::Split::kTest
                                         : tasks::Split::kValid,
      .batches = options.batches < 0 ? config.evaluation_batches : options.batches,
      .batch_size = config.batch_size / config.accumulate};
  const LiveLine live;
  const train::Score score =
      train::evaluate(*trained.model, *task, plan, device, [&](int64_t done, int64_t all) {
        live.show("batch " + std::to_string(done) + "/" + std::to_string(all));
      });
  live.clear();
  if (options.json) {
    const nlohmann::ordered_json result = {{"run", options.run},
                                           {"step", trained.step},
                                           {"split", options.split},
                                           {"loss", score.mean_loss()},
                                           {"perplexity", std::exp(score.mean_loss())},
                                           {"accuracy", score.accuracy()},
                                           {"count", score.count}};
    std::printf("%s\n", result.dump().c_str());
  } else {
    std::printf("%s, step %ld, %s: loss %.4f  accuracy %.2f %%  (%.0f predictions)\n",
                options.run.c_str(), trained.step, options.split.c_str(), score.mean_loss(),
                score.accuracy(), score.count);
  }
  return kDone;
}

}  // namespace fmmformer::cli
