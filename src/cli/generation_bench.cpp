// SPDX-License-Identifier: Apache-2.0
#include "cli/generation_bench.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
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
  double cpu = 0;                // seconds of all cores a token, mean: a busy machine adds little
  double computed = 0;           // share of the vocabulary that was computed, mean over tokens
  double bounded = 0;            // and that there were bounds for
  int64_t memory_bytes = 0;
};

void add_shares(const TokenScores& scores, GenerationTiming& timing) {
  for (size_t part = 0; part < scores.parts().size(); ++part) {
    const double share =
        static_cast<double>(scores.parts()[part].size) / static_cast<double>(scores.tokens());
    if (scores.is_computed(part)) timing.computed += share;
    if (scores.is_bounded(part)) timing.bounded += share;
  }
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
  std::clock_t cpu_begin = 0;
  for (int64_t i = 0; i < (windows + 1) * window; ++i) {
    if (i == window) cpu_begin = std::clock();
    const auto begin = clock();
    const TokenScores scores = session.feed({&token, 1});
    Random random(static_cast<uint64_t>(i));
    token = sample_token(scores, sampling, session.context(), random);
    const double seconds = std::chrono::duration<double>(clock() - begin).count();
    if (i < window) continue;  // a first window to warm up
    durations.push_back(seconds);
    add_shares(scores, timing);
  }
  const auto count = static_cast<double>(durations.size());
  double total = 0;
  for (const double seconds : durations) total += seconds;
  timing.tokens_per_second = count / total;
  timing.cpu = static_cast<double>(std::clock() - cpu_begin) / CLOCKS_PER_SEC / count;
  timing.computed /= count;
  timing.bounded /= count;
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
          {"cpu_ms", 1e3 * timing.cpu},
          {"share_of_vocabulary_computed", timing.computed},
          {"share_of_vocabulary_bounded", timing.bounded},
          {"memory_bytes", timing.memory_bytes}};
}

struct GenerationBenchOptions {
  std::string preset = "wikitext103/fmm2_band20", filter, json;
  int64_t windows = 2;
  double spread = 0.3, tails = 0.12;
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
                     "standard deviation of the weights: how unlike words are (default: 0.3, which "
                     "gives WikiText-103's model a perplexity of about 110)")
          ->type_name("X"),
      0);
  app.add_option("--tails", options.tails,
                 "mean probability of the words beyond an adaptive softmax's head (default: 0.12)")
      ->type_name("X")
      ->check(CLI::Range(0.0, 0.99));
  app.add_option("--filter", options.filter, "only ways of sampling with this in their name")
      ->type_name("TEXT");
  app.add_option("--json", options.json, "write the record to this file")->type_name("FILE");
  add_device_options(app, options.device);
  app.footer("Example:\n  fmmformer bench generation wikitext103/softmax --threads 2");
}

/// What a model says of a text that it draws itself.
struct Predictions {
  std::vector<std::vector<double>> log_odds;  // [tokens][clusters], of a cluster against the head
  double perplexity = 0;                      // exp of the mean entropy
  double tails = 0;                           // mean probability of all clusters
};

Predictions predictions_of(const std::shared_ptr<const LanguageModel>& model, int64_t tokens) {
  const c10::InferenceMode no_bookkeeping;
  DecodingSession session(model);
  Predictions result;
  double entropy = 0;
  int64_t token = 0;
  for (int64_t i = 0; i < tokens; ++i) {
    const TokenScores scores = session.feed({&token, 1});
    result.log_odds.emplace_back();
    for (const TokenScores::Part& part : scores.parts().subspan(1)) {
      result.log_odds.back().push_back(part.log_mass - scores.parts()[0].log_mass);
      result.tails += std::exp(part.log_mass) / static_cast<double>(tokens);
    }
    const at::Tensor log_p = scores.all().to(at::kDouble);
    entropy -= (log_p.exp() * log_p).sum().item<double>();
    Random random(static_cast<uint64_t>(i));
    token = sample_token(scores, {}, session.context(), random);
  }
  result.perplexity = std::exp(entropy / static_cast<double>(tokens));
  return result;
}

/// What to add to each cluster's logit so that its mean probability becomes `wanted`.
std::vector<double> biases_for(const Predictions& predictions, double wanted) {
  std::vector<double> biases(predictions.log_odds[0].size(), 0);
  constexpr int kRounds = 100;  // each moves the means nearer by a factor of its own
  for (int round = 0; round < kRounds; ++round) {
    std::vector<double> means(biases.size(), 0);
    for (const std::vector<double>& odds : predictions.log_odds) {
      double all = 1;
      for (size_t c = 0; c < odds.size(); ++c) all += std::exp(odds[c] + biases[c]);
      for (size_t c = 0; c < odds.size(); ++c) {
        means[c] +=
            std::exp(odds[c] + biases[c]) / all / static_cast<double>(predictions.log_odds.size());
      }
    }
    for (size_t c = 0; c < biases.size(); ++c) biases[c] += std::log(wanted / means[c]);
  }
  return biases;
}

/// Random weights alone leave a cluster one entry among thousands of the head, so that no draw
/// would ever look into one. Its bias is set so that clusters have their share of the probability.
void raise_clusters(Model& model, const Predictions& predictions, double tails) {
  auto parameters = model.named_parameters();  // a dictionary of its own, which must outlive `bias`
  at::Tensor* bias = parameters.find("output.cluster.bias");
  if (!bias || tails == 0) return;
  const auto added = biases_for(predictions, tails / static_cast<double>(bias->numel()));
  const at::NoGradGuard no_gradients;
  // The last entry belongs to the first cluster.
  bias->add_(at::tensor(added, at::kDouble).flip(0).to(bias->options()));
}

std::shared_ptr<const LanguageModel> random_model(const GenerationBenchOptions& options,
                                                  const c10::Device& device) {
  ModelConfig config = train::load_experiment(find_config(options.preset)).model;
  if (config.kind != ModelKind::kLanguageModel)
    throw UsageError("'" + options.preset + "' is no language_model");
  config.initial_std = options.spread;
  const auto made = make_model(config, 1);
  made->to(device);
  const auto model = std::dynamic_pointer_cast<const LanguageModel>(made);
  constexpr int64_t kTokens = 64;  // a few seconds; masses differ from token to token
  raise_clusters(*made, predictions_of(model, kTokens), options.tails);
  const Predictions reached = predictions_of(model, kTokens);
  std::printf(
      "%s: %ld parameters, vocabulary %ld; random weights, a perplexity of %.0f, %.1f%% "
      "beyond the head\n",
      options.preset.c_str(), model->parameter_count(), model->config().vocabulary,
      reached.perplexity, 100 * reached.tails);
  return model;
}

/// Timings of all settings, told as they come.
Json measured_rows(const std::shared_ptr<const LanguageModel>& model,
                   const GenerationBenchOptions& options) {
  std::printf("%-28s %9s %9s %9s %9s %9s %9s %11s\n", "sampling", "tokens/s", "median", "slowest",
              "cpu", "computed", "bounded", "memory");
  Json rows = Json::array();
  for (const Setting& setting : kSettings) {
    if (std::string_view(setting.name).find(options.filter) == std::string_view::npos) continue;
    const GenerationTiming timing = measure(model, setting.sampling, options.windows);
    std::printf("%-28s %9.1f %6.2f ms %6.1f ms %6.2f ms %8.1f%% %8.1f%% %7.2f MiB\n", setting.name,
                timing.tokens_per_second, 1e3 * timing.token.median, 1e3 * timing.slowest,
                1e3 * timing.cpu, 100 * timing.computed, 100 * timing.bounded,
                static_cast<double>(timing.memory_bytes) / (1 << 20));
    std::fflush(stdout);
    rows.push_back(json_of(setting, timing));
  }
  if (rows.empty()) throw UsageError("no way of sampling has '" + options.filter + "' in its name");
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
  const std::string machine = bench::machine_text(bench::describe_machine());
  std::printf("%s, device %s\n", machine.c_str(), device.str().c_str());
  const auto model = random_model(options, device);
  const Json rows = measured_rows(model, options);
  if (options.json.empty()) return kDone;
  const train::RunIdentity identity = run_identity(device, line.text());
  const Json record = {{"config", options.preset},    {"created", identity.created},
                       {"commit", identity.commit},   {"command", identity.command},
                       {"machine", identity.machine}, {"versions", identity.versions},
                       {"windows", options.windows},  {"spread", options.spread},
                       {"tails", options.tails},      {"rows", rows}};
  write_file_atomically(options.json, record.dump(2) + "\n");
  return kDone;
}

}  // namespace fmmformer::cli
