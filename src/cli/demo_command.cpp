// SPDX-License-Identifier: Apache-2.0
// `demo`: the paper's idea at work in a few minutes of a CPU.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/device_options.h"
#include "cli/lengths.h"
#include "cli/presets.h"
#include "cli/run_identity.h"
#include "cli/scaling_command.h"
#include "cli/train_progress.h"
#include "fmmformer/core/allocator.h"
#include "fmmformer/core/atomic_file.h"
#include "report/write_report.h"
#include "train/trainer.h"

namespace fmmformer::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct DemoOptions {
  std::string out = "runs/demo";
  int64_t seed = 1;
  int64_t steps = 0;
  std::string lengths = "512..8192";
  DeviceOptions device;
};

constexpr const char* kModels[] = {"softmax", "linear", "fmm"};
constexpr const char* kMarker = ".fmmformer-demo";  // tells a folder of ours from a user's own

// What an earlier demo made makes room; anything else stays.
void prepare_folder(const fs::path& folder) {
  if (fs::exists(folder) && !fs::is_empty(folder)) {
    if (!fs::exists(folder / kMarker)) {
      throw UsageError("'" + folder.string() +
                       "' is not empty and not of an earlier demo; choose another with --out");
    }
    for (const char* made : {"softmax", "linear", "fmm", "scaling.json", "report.html"})
      fs::remove_all(folder / made);
  }
  fs::create_directories(folder);
  write_file_atomically(folder / kMarker,
                        "made by fmmformer demo; the next one replaces its runs\n");
}

train::ExperimentConfig experiment_of(const std::string& model, const DemoOptions& options) {
  std::vector<std::string> overrides = {"train.seed=" + std::to_string(options.seed)};
  if (options.steps > 0) overrides.push_back("train.steps=" + std::to_string(options.steps));
  return train::load_experiment(find_config("demo/" + model), overrides);
}

train::RunOutcome train_one(const std::string& model, const DemoOptions& options,
                            const train::TrainerOptions& settings) {
  const train::ExperimentConfig experiment = experiment_of(model, options);
  std::printf("\n%s\n", experiment.about.c_str());
  const auto listener = make_progress(ProgressStyle::kAuto);
  return train::start_run(experiment, fs::path(options.out) / model, settings, *listener);
}

// What the record of a run says: the accuracy on fresh examples at the last evaluation up to
// `step`.
double accuracy_at(const fs::path& run, int64_t step) {
  const Json record = Json::parse(std::ifstream(run / "record.json"));
  double accuracy = 0;
  for (const Json& point : record.at("curves").at("valid")) {
    if (point.at("step").get<int64_t>() <= step) accuracy = 100 * point.at("metric").get<double>();
  }
  return accuracy;
}

const Json& series_of(const Json& record, const std::string& attention) {
  for (const Json& series : record.at("series")) {
    if (series.at("attention") == attention) return series;
  }
  throw std::logic_error("the scaling record has no series of " + attention);
}

// How many times as long softmax takes at the longest length that it was measured at.
std::pair<int64_t, double> advantage(const Json& scaling) {
  const Json &softmax = series_of(scaling, "softmax"), &fmm = series_of(scaling, "fmm");
  std::pair<int64_t, double> best{0, 0};
  for (size_t i = 0; i < softmax.at("points").size(); ++i) {
    const Json &slow = softmax.at("points")[i], &fast = fmm.at("points")[i];
    if (slow.contains("failure") || fast.contains("failure")) continue;
    best = {slow.at("length"), slow.at("seconds").get<double>() / fast.at("seconds").get<double>()};
  }
  return best;
}

void print_summary(const fs::path& folder, int64_t steps, const Json& scaling) {
  const auto [length, times] = advantage(scaling);
  std::printf("\n");
  for (const int64_t step : {steps / 3, steps}) {
    if (accuracy_at(folder / "fmm", step) == 0) continue;  // before the first evaluation
    std::printf(
        "  accuracy on the copy task after %ld steps: softmax %.1f %%, FMM %.1f %%, linear %.1f "
        "%%\n",
        step, accuracy_at(folder / "softmax", step), accuracy_at(folder / "fmm", step),
        accuracy_at(folder / "linear", step));
  }
  std::printf(
      "  at length %ld softmax attention takes %.1f times as long as FMM (3 kernels + band 30)\n",
      length, times);
}

}  // namespace

int run_demo(const CommandLine& line) {
  DemoOptions options;
  CLI::App app(
      "Trains softmax, linear and FMM attention on a small copy task, times them against length, "
      "and writes one\nHTML page about it. A few minutes on two cores.");
  app.add_option("--out", options.out, "folder for the runs and the page (default: runs/demo)")
      ->type_name("FOLDER");
  require_at_least(
      app.add_option("--seed", options.seed, "of all three models (default 1)")->type_name("N"), 0);
  require_at_least(
      app.add_option("--steps", options.steps, "instead of the configs' number")->type_name("N"),
      1);
  app.add_option("--lengths", options.lengths,
                 "lengths to time; a range doubles (default 512..8192)")
      ->type_name("A..B");
  add_device_options(app, options.device);
  app.footer("Example:\n  fmmformer demo --out runs/demo");
  if (!read_options(app, line)) return kDone;

  keep_freed_memory();
  const c10::Device device = use_device(options.device);
  // Mistakes show before anything is made.
  parse_lengths(options.lengths);
  for (const char* model : kModels) experiment_of(model, options);
  prepare_folder(options.out);
  const train::TrainerOptions settings{.device = device,
                                       .identity = run_identity(device, line.text())};
  std::vector<train::RunOutcome> outcomes;
  for (const char* model : kModels) {
    outcomes.push_back(train_one(model, options, settings));
    const train::RunOutcome& outcome = outcomes.back();
    if (outcome.status == train::RunStatus::kFailed) throw std::runtime_error(outcome.message);
    if (outcome.status == train::RunStatus::kInterrupted) {
      std::fprintf(stderr, "%s: stopped; the next one begins anew\n", line.command.c_str());
      return kStoppedBySignal + outcome.signal;
    }
  }
  std::printf("\nTime and memory of one attention layer against length\n");
  ScalingRequest request;
  request.command = line.text();
  request.plan.lengths = parse_lengths(options.lengths);
  request.plan.longest_run = 6;
  request.plan.timing = {.warm_up_seconds = 0.1, .seconds = 0.5};
  const Json scaling = measure_scaling_record(request);
  const fs::path folder = options.out, page = folder / "report.html";
  write_file_atomically(folder / "scaling.json", scaling.dump(2) + "\n");
  std::vector<fs::path> records = {folder / "scaling.json"};
  for (const char* model : kModels) records.push_back(folder / model);
  report::write_report(records, page, {.title = "FMMformer demo: copying with near and far field"});
  print_summary(folder, outcomes.back().step, scaling);
  std::printf("The page: %s\n", page.c_str());
  return kDone;
}

}  // namespace fmmformer::cli
