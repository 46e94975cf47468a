// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "cli/commands.h"
#include "cli/device_options.h"
#include "cli/presets.h"
#include "cli/run_identity.h"
#include "cli/train_progress.h"
#include "fmmformer/core/allocator.h"
#include "train/trainer.h"

namespace fmmformer::cli {
namespace {

struct TrainOptions {
  std::string what;
  std::vector<std::string> overrides;
  std::string out;
  std::string init_from;
  bool resume = false;
  bool quiet = false;
  bool json = false;
  DeviceOptions device;
};

void add_options(CLI::App& app, TrainOptions& options) {
  app.add_option("CONFIG", options.what,
                 "a TOML file or a preset's name; with --resume also a run folder")
      ->required();
  app.add_option("--set", options.overrides, "override a.b=c of the config; may be repeated")
      ->type_name("A.B=C");
  app.add_option("--out", options.out, "run folder (default: runs/NAME of the config)")
      ->type_name("FOLDER");
  app.add_flag("--resume", options.resume, "go on from the run's last checkpoint, bit for bit");
  app.add_option("--init-from", options.init_from,
                 "begin with the weights of another run (its folder) or a safetensors file")
      ->type_name("PATH");
  add_device_options(app, options.device);
  app.add_flag("--quiet", options.quiet, "show nothing but what is wrong");
  app.add_flag("--json", options.json, "one JSON object a line instead of text");
  app.footer(
      "Ctrl-C finishes the step, saves and says how to go on.\n\n"
      "Examples:\n  fmmformer train copy/fmm1_band30_512 --set train.steps=500 --out runs/x\n"
      "  fmmformer train runs/x --resume --set train.steps=1000");
}

std::string invocation(const CommandLine& line) {
  std::string text = line.command;
  for (const std::string& argument : line.arguments) text.append(" ").append(argument);
  return text;
}

int report_outcome(const train::RunOutcome& outcome, const std::filesystem::path& folder,
                   const TrainOptions& options) {
  switch (outcome.status) {
    case train::RunStatus::kFailed:
      std::fprintf(stderr, "fmmformer train: %s\n", outcome.message.c_str());
      return kFailed;
    case train::RunStatus::kInterrupted:
      std::fprintf(stderr,
                   "stopped after step %ld and saved; go on with\n  fmmformer train %s --resume\n",
                   outcome.step, folder.c_str());
      return kDone;
    case train::RunStatus::kFinished:
      break;
  }
  if (!options.quiet && !options.json) {
    std::printf("done: best %s %.2f %s at step %ld, %s; the run is in %s\n",
                std::string(outcome.metric.name).c_str(), outcome.best_metric,
                std::string(outcome.metric.unit).c_str(), outcome.best_step,
                duration_text(outcome.seconds).c_str(), folder.c_str());
  }
  return kDone;
}

}  // namespace

int run_train(const CommandLine& line) {
  TrainOptions options;
  CLI::App app("Trains the model that a config describes and keeps everything in a run folder.");
  add_options(app, options);
  if (!read_options(app, line)) return kDone;

  keep_freed_memory();
  const c10::Device device = use_device(options.device);
  train::TrainerOptions settings{.device = device,
                                 .identity = run_identity(device, invocation(line)),
                                 .init_from = options.init_from};
  settings.identity.overrides = options.overrides;
  auto listener = make_progress(options.quiet  ? ProgressStyle::kQuiet
                                : options.json ? ProgressStyle::kJson
                                               : ProgressStyle::kAuto);
  if (options.resume && std::filesystem::is_directory(options.what)) {
    const auto outcome = train::resume_run(options.what, options.overrides, settings, *listener);
    listener.reset();  // its live line goes before the last word
    return report_outcome(outcome, options.what, options);
  }
  const train::ExperimentConfig experiment =
      train::load_experiment(find_config(options.what), options.overrides);
  const std::filesystem::path folder = options.out.empty()
                                           ? std::filesystem::path("runs") / experiment.name
                                           : std::filesystem::path(options.out);
  const auto outcome = options.resume
                           ? train::resume_run(folder, options.overrides, settings, *listener)
                           : train::start_run(experiment, folder, settings, *listener);
  listener.reset();
  return report_outcome(outcome, folder, options);
}

}  // namespace fmmformer::cli
