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
      ->type_name("A.B=C")
      ->allow_extra_args(false);
  app.add_option("--out", options.out, "run folder (default: runs/NAME of the config)")
      ->type_name("FOLDER");
  app.add_flag("--resume", options.resume, "go on from the run's last checkpoint, bit for bit");
  app.add_option("--init-from", options.init_from,
                 "begin with the weights of another run (its folder) or a safetensors file")
      ->type_name("PATH");
  add_device_options(app, options.device);
  CLI::Option* quiet = app.add_flag("--quiet", options.quiet, "show nothing but what is wrong");
  app.add_flag("--json", options.json,
               "one JSON object a line instead of text; the last is {\"event\": \"ended\", ..}")
      ->excludes(quiet);
  app.footer(
      "Ctrl-C finishes the step, saves and says how to go on; a second one ends at once.\n"
      "Exit codes: 0 the run is finished, 1 it failed, 2 the input is wrong, 130 it was stopped "
      "by\n"
      "Ctrl-C (128 + the signal's number) and can be resumed.\n\n"
      "Examples:\n  fmmformer train copy/fmm1_band30_512 --set train.steps=500 --out runs/x\n"
      "  fmmformer train runs/x --resume --set train.steps=1000");
}

train::RunOutcome train_or_resume(const TrainOptions& options,
                                  const train::TrainerOptions& settings,
                                  train::TrainListener& listener) {
  if (options.resume && std::filesystem::is_directory(options.what))
    return train::resume_run(options.what, options.overrides, settings, listener);
  const train::ExperimentConfig experiment =
      train::load_experiment(find_config(options.what), options.overrides);
  const std::filesystem::path folder = options.out.empty()
                                           ? std::filesystem::path("runs") / experiment.name
                                           : std::filesystem::path(options.out);
  if (!options.resume) return train::start_run(experiment, folder, settings, listener);
  train::check_run_is_of(experiment, folder);
  return train::resume_run(folder, options.overrides, settings, listener);
}

int exit_code_of(const train::RunOutcome& outcome, const DeviceOptions& device,
                 const CommandLine& line) {
  switch (outcome.status) {
    case train::RunStatus::kRunning:  // no outcome says so
    case train::RunStatus::kFinished:
      break;
    case train::RunStatus::kFailed:
      throw std::runtime_error(outcome.message);
    case train::RunStatus::kInterrupted:
      std::fprintf(stderr,
                   "%s: stopped after step %ld and saved; go on with\n  %s train %s --resume%s\n",
                   line.command.c_str(), outcome.step, line.program.c_str(), outcome.folder.c_str(),
                   device.device == "cpu" ? "" : (" --device " + device.device).c_str());
      return kStoppedBySignal + outcome.signal;
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
                                 .identity = run_identity(device, line.text()),
                                 .init_from = options.init_from};
  settings.identity.overrides = options.overrides;
  auto listener = make_progress(options.quiet  ? ProgressStyle::kQuiet
                                : options.json ? ProgressStyle::kJson
                                               : ProgressStyle::kAuto);
  try {
    const train::RunOutcome outcome = train_or_resume(options, settings, *listener);
    listener.reset();  // its live line goes before the last word
    return exit_code_of(outcome, options.device, line);
  } catch (const std::exception& error) {
    // Whoever reads the events waits for the last one.
    if (listener)
      listener->ended({.status = train::RunStatus::kFailed, .message = error_text(error)});
    throw;
  }
}

}  // namespace fmmformer::cli
