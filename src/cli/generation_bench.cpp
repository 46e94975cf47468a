// SPDX-License-Identifier: Apache-2.0
#include "cli/generation_bench.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "bench/machine.h"
#include "bench/statistics.h"
#include "cli/device_options.h"
#include "cli/presets.h"
#include "cli/run_identity.h"
#include "fmmformer/core/allocator.h"
#include "fmmformer/core/atomic_file.h"
#include "fmmformer/core/config.h"
#include "fmmformer/models/decoding_session.h"
#include "fmmformer/models/sampling.h"
#include "train/experiment.h"

namespace fmmformer::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Setting {
  const char* name;
  SamplingOptions sampling;
};
constexpr Setting kSettings[] = {
    {"greedy", {.temperature = 0}},
    {"plain", {}},
    {"top_k 40", {.top_k = 40}},
    {"temperature 0.8, top_p 0.95", {.temperature = 0.8, .top_p = 0.95}},
    {"temperature 1.5", {.temperature = 1.5}},
};

struct GenerationTiming {
  double tokens_per_second = 0;  // over whole windows, what is read again included
  bench::Timing token;           // one at a time
  double slowest = 0;            // a token that begins a window
  double computed = 0;           // share of the vocabulary that was computed, mean over tokens
  int64_t memory_bytes = 0;
};

double share_computed(const TokenScores& scores) {
  int64_t tokens = 0;
  for (size_t part = 0; part < scores.parts().size(); ++part) {
    if (scores.is_computed(part)) tokens += scores.parts()[part].size;
  }
  return static_cast<double>(tokens) / static_cast<double>(scores.tokens());
}

GenerationTiming measure(const std::shared_ptr<const LanguageModel>& model,
                         const SamplingOptions& sampling, int64_t windows) {
  const c10::InferenceMode no_bookkeeping;
  const int64_t window = model->config().max_length;
  DecodingSession session(model);
  GenerationTiming timing;
  std::vector<double> durations;
  int64_t token = 0;
  const auto clock = [] { return std::chrono::steady_clock::now(); };
  for (int64_t i = 0; i < (windows + 1) * window; ++i) {
    const auto begin = clock();
    const TokenScores scores = session.feed({&token, 1});
    Random random(static_cast<uint64_t>(i));
    token = sample_token(scores, sampling, session.context(), random);
    const double seconds = std::chrono::duration<double>(clock() - begin).count();
    if (i < window) continue;  // a first window to warm up
    durations.push_back(seconds);
    timing.computed += share_computed(scores);
  }
  const auto count = static_cast<double>(durations.size());
  double total = 0;
  for (const double seconds : durations) total += seconds;
  timing.tokens_per_second = count / total;
  timing.computed /= count;
  timing.slowest = *std::ranges::max_element(durations);
  timing.token = bench::summarise(std::move(durations));
  timing.memory_bytes = session.memory_bytes();
  return timing;
}

Json json_of(const Setting& setting, const GenerationTiming& timing) {
  return {{"setting", setting.name},
          {"tokens_per_second", timing.tokens_per_second},
          {"median_ms", 1e3 * timing.token.median},
          {"slowest_ms", 1e3 * timing.slowest},
          {"share_of_vocabulary_computed", timing.computed},
          {"memory_bytes", timing.memory_bytes}};
}

struct GenerationBenchOptions {
  std::string preset = "wikitext103/fmm2_band20", json;
  int64_t windows = 2;
  double spread = 0.1;
  DeviceOptions device;
};

void add_options(CLI::App& app, GenerationBenchOptions& options) {
  app.add_option("CONFIG", options.preset,
                 "a preset or a TOML file (default: wikitext103/fmm2_band20)");
  require_at_least(app.add_option("--windows", options.windows,
                                  "how long the text is, in the model's windows (default: 2)")
                       ->type_name("N"),
                   1);
  require_number_at_least(
      app.add_option("--spread", options.spread,
                     "standard deviation of the weights (default: 0.1, which makes words about as "
                     "unlike as a trained model does)")
          ->type_name("X"),
      0);
  app.add_option("--json", options.json, "write the record to this file")->type_name("FILE");
  add_device_options(app, options.device);
  app.footer("Example:\n  fmmformer bench generation wikitext103/softmax --threads 2");
}

std::shared_ptr<const LanguageModel> random_model(const GenerationBenchOptions& options,
                                                  const c10::Device& device) {
  ModelConfig config = train::load_experiment(find_config(options.preset)).model;
  if (config.kind != ModelKind::kLanguageModel)
    throw UsageError("'" + options.preset + "' is no language_model");
  config.initial_std = options.spread;
  const auto made = make_model(config, 1);
  made->to(device);
  return std::dynamic_pointer_cast<const LanguageModel>(made);
}

/// Timings of all settings, told as they come.
Json measured_rows(const std::shared_ptr<const LanguageModel>& model, int64_t windows) {
  std::printf("%-28s %9s %9s %9s %9s %11s\n", "sampling", "tokens/s", "median", "slowest",
              "computed", "memory");
  Json rows = Json::array();
  for (const Setting& setting : kSettings) {
    const GenerationTiming timing = measure(model, setting.sampling, windows);
    std::printf("%-28s %9.1f %6.2f ms %6.1f ms %8.1f%% %7.2f MiB\n", setting.name,
                timing.tokens_per_second, 1e3 * timing.token.median, 1e3 * timing.slowest,
                100 * timing.computed, static_cast<double>(timing.memory_bytes) / (1 << 20));
    std::fflush(stdout);
    rows.push_back(json_of(setting, timing));
  }
  return rows;
}

}  // namespace

int run_bench_generation(const CommandLine& line) {
  GenerationBenchOptions options;
  CLI::App app(
      "Times how a language model goes on with a text, token by token, with random weights: they "
      "cost what trained ones\ndo, but for how much of the vocabulary a draw looks at.");
  add_options(app, options);
  if (!read_options(app, line)) return kDone;
  check_output_file("--json", options.json);

  keep_freed_memory();  // as `generate` does
  const c10::Device device = use_device(options.device);
  const auto model = random_model(options, device);
  const std::string machine = bench::machine_text(bench::describe_machine());
  std::printf("%s, device %s\n%s: %ld parameters, vocabulary %ld\n", machine.c_str(),
              device.str().c_str(), options.preset.c_str(), model->parameter_count(),
              model->config().vocabulary);
  const Json rows = measured_rows(model, options.windows);
  if (options.json.empty()) return kDone;
  const train::RunIdentity identity = run_identity(device, line.text());
  const Json record = {
      {"config", options.preset},    {"created", identity.created}, {"commit", identity.commit},
      {"command", identity.command}, {"machine", identity.machine}, {"versions", identity.versions},
      {"windows", options.windows},  {"spread", options.spread},    {"rows", rows}};
  write_file_atomically(options.json, record.dump(2) + "\n");
  return kDone;
}

}  // namespace fmmformer::cli
