// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "bench/gpu_variants.h"
#include "cli/bench_rows.h"
#include "cli/bench_table.h"
#include "cli/commands.h"
#include "cli/compiled_peer.h"
#include "cli/device_options.h"
#include "cli/fast_weight_bench.h"
#include "cli/generation_bench.h"
#include "cli/gpu_bench.h"
#include "cli/lengths.h"
#include "cli/scaling_command.h"
#include "fmmformer/core/allocator.h"
#include "fmmformer/core/atomic_file.h"

namespace fmmformer::cli {
namespace {

using namespace fmmformer::bench;

struct AttentionBenchOptions {
  std::vector<std::string> cases;
  std::string lengths;
  std::string dtype;
  DeviceOptions device;
  std::string peers;
  bool forward = false;
  bool compiled = false;
  bool python_peers = false;
  std::string python;
  bool variants = false;
  bool quick = false;
  bool keep_memory = false;
  bool list = false;
  std::string json;
};

constexpr int64_t kLongestQuick = 2048;
constexpr int64_t kMostQuickGpuTokens = 65536;

void add_options(CLI::App& app, AttentionBenchOptions& options) {
  app.add_option("--case", options.cases,
                 "only this case, may be repeated (default: every timing case)")
      ->type_name("NAME");
  app.add_option(
         "--lengths", options.lengths,
         "these lengths of the case (default: of " + std::string(kPlainCase) + "); a range doubles")
      ->type_name("512..65536");
  app.add_option("--dtype", options.dtype,
                 "fp32 (default), bf16, fp16 or fp64; on a GPU bf16 and fp32 unless told")
      ->type_name("TYPE");
  add_device_options(app, options.device);
  app.add_option(
         "--peers", options.peers,
         "sdpa,composite,dense_near (default; on a GPU sdpa) or none; named here, they also run "
         "where they take minutes")
      ->type_name("A,B");
  app.add_flag("--forward", options.forward, "forward alone, without gradients");
  app.add_flag(
      "--variants", options.variants,
      "the plain case with one thing changed (mask, dropout, layout ..), as a ratio to it; on a "
      "GPU every kind of case");
  app.add_flag("--compiled", options.compiled,
               "also the composite under torch.compile, in a Python child (about 20 s a case)");
  app.add_flag("--python-peers", options.python_peers,
               "on a GPU: also FlexAttention, flash-attn and fla, where installed, in a Python "
               "child (about 10 s a case)");
  app.add_option("--python", options.python,
                 "the Python for --compiled and --python-peers (default: .venv/bin/python)")
      ->type_name("PATH");
  app.add_flag("--quick", options.quick, "short cases and short timings");
  app.add_flag(
      "--keep-memory", options.keep_memory,
      "keep freed memory, as a caching allocator would: fresh tensors then cost no page faults");
  app.add_flag("--list", options.list, "show the cases that would run, and run none");
  app.add_option("--json", options.json, "write the record to this file")->type_name("FILE");
  app.footer(
      "Columns: median +- half the quartile distance; times the arithmetic floor; peak tensor "
      "memory beyond the\n"
      "inputs; share of this machine's matrix-product rate; then how many times longer each peer "
      "takes.\n"
      "With --device cuda: the same as a replayed CUDA graph and eagerly, the limit of the case, "
      "and the time of\n"
      "moving every tensor once through memory.\n\n"
      "Examples:\n  fmmformer bench attention\n"
      "  fmmformer bench attention --case causal_2048_r1_band5 --peers composite --json "
      "record.json\n"
      "  fmmformer bench attention --lengths 4096..65536 --peers none\n"
      "  fmmformer bench attention --device cuda --json gpu.json");
}

std::vector<AttentionCase> chosen_cases(const AttentionBenchOptions& options) {
  std::vector<AttentionCase> chosen;
  for (const std::string& name : options.cases) chosen.push_back(case_named(name));
  if (!options.lengths.empty()) {
    if (chosen.empty()) chosen.push_back(case_named(kPlainCase));
    std::vector<AttentionCase> stretched;
    for (const AttentionCase& base : chosen) {
      for (const int64_t length : parse_lengths(options.lengths)) {
        stretched.push_back(base);
        stretched.back().length = length;
        stretched.back().gpu_limit.reset();  // it is for the length that the case has
        stretched.back().name.append("@").append(std::to_string(length));
      }
    }
    return stretched;
  }
  if (!chosen.empty() || options.variants) return chosen;
  const bool on_gpu = options.device.asks_for_gpu();
  const int64_t most_tokens = on_gpu ? kMostQuickGpuTokens : kLongestQuick;
  for (const AttentionCase& one : cases_with_tag(on_gpu ? CaseTag::kGpu : CaseTag::kTiming)) {
    if (!options.quick || one.batch * one.length <= most_tokens) chosen.push_back(one);
  }
  return chosen;
}

std::vector<const Peer*> chosen_peers(const AttentionBenchOptions& options) {
  std::vector<const Peer*> chosen;
  if (options.peers.empty()) {
    if (options.device.asks_for_gpu()) return {&peer_named("sdpa")};
    for (const Peer& peer : peers()) chosen.push_back(&peer);
  } else if (options.peers != "none") {
    for (const std::string& name : split_at_commas(options.peers))
      chosen.push_back(&peer_named(name));
  }
  return chosen;
}

BenchmarkOptions benchmark_options(const AttentionBenchOptions& options) {
  BenchmarkOptions result;
  if (!options.dtype.empty()) result.dtype = dtype_from_name(options.dtype);
  if (options.forward) result.pass = bench::Pass::kForward;
  result.peers = chosen_peers(options);
  result.run_slow_peers = !options.peers.empty();
  if (options.quick) result.plan = {.warm_up_seconds = 0.05, .seconds = 0.4, .minimum_repeats = 3};
  return result;
}

void bench_on_gpu(const AttentionBenchOptions& options, const std::vector<AttentionCase>& cases,
                  const CommandLine& line) {
  const std::pair<bool, const char*> for_the_cpu[] = {{options.forward, "--forward"},
                                                      {options.compiled, "--compiled"},
                                                      {options.keep_memory, "--keep-memory"}};
  for (const auto& [given, name] : for_the_cpu) {
    if (given) throw UsageError(std::string(name) + " is for the CPU; leave it or --device out");
  }
  GpuBenchRequest request{.cases = cases,
                          .python_peers = options.python_peers,
                          .python = options.python,
                          .json = options.json,
                          .command = line.text()};
  request.variants = options.variants;
  request.options.device = use_device(options.device);
  request.options.peers = chosen_peers(options);
  request.options.run_slow_peers = !options.peers.empty();
  if (options.quick) request.options.plan.seconds = 0.03;
  request.dtypes = {c10::kBFloat16, c10::kFloat};
  if (!options.dtype.empty()) request.dtypes = {dtype_from_name(options.dtype)};
  run_gpu_bench(request);
}

void warn_when_busy() {
  const double others = busy_threads_elsewhere();
  if (others < 0.5) return;
  std::fprintf(stderr,
               "warning: other programs keep %.1f threads busy; the times below are not this "
               "machine's best\n",
               others);
}

nlohmann::json measure_rows(const std::vector<AttentionCase>& cases,
                            const AttentionBenchOptions& options,
                            const BenchmarkOptions& settings) {
  nlohmann::json rows = nlohmann::json::array();
  if (cases.empty()) return rows;
  std::vector<std::string> columns;
  for (const Peer* peer : settings.peers) columns.emplace_back(peer->name);
  std::vector<PeerResult> compiled;
  if (options.compiled) {
    std::fprintf(stderr, "compiling the composite for %zu cases ..\n", cases.size());
    compiled = run_compiled_peer(cases, settings, options.python);
    columns.emplace_back("compiled");
  }
  std::printf("%s\n", table_heading(columns).c_str());
  for (size_t i = 0; i < cases.size(); ++i) {
    rows.push_back(measured_row(columns, [&] {
      BenchmarkRow row = measure_case(cases[i], settings);
      if (options.compiled) row.peers.push_back(compiled[i]);
      return row;
    }));
  }
  return rows;
}

void measure_variant_rows(BenchmarkRecord& record, const BenchmarkOptions& settings) {
  std::printf("%s\n", variant_heading().c_str());
  std::fflush(stdout);
  record.variants = measure_variants(settings);
  for (const VariantRow& row : record.variants) std::printf("%s\n", variant_row(row).c_str());
}

void list_cases(const AttentionBenchOptions& options, const std::vector<AttentionCase>& cases) {
  const auto show = [](const std::string& name, const AttentionCase& one) {
    std::printf("%-28s %s\n", name.c_str(), shape_text(one).c_str());
  };
  for (const AttentionCase& one : cases) show(one.name, one);
  if (!options.variants) return;
  if (options.device.asks_for_gpu()) {
    for (const GpuVariant& variant : gpu_variants())
      show(variant.plain.name + " " + variant.change, variant.changed);
  } else {
    for (const AttentionCase& one : cases_with_tag(CaseTag::kVariant)) show(one.name, one);
  }
}

int run_bench_attention(const CommandLine& line) {
  AttentionBenchOptions options;
  CLI::App app(
      "Times fmm_attention, forward and backward, beside what else a user has; on the CPU each "
      "case has a process of its own.");
  add_options(app, options);
  if (!read_options(app, line)) return kDone;

  if (options.keep_memory) keep_freed_memory();
  check_output_file("--json", options.json);
  BenchmarkOptions settings = benchmark_options(options);
  // Before anything is measured, so that a mistake in a name or a length shows at once.
  const std::vector<AttentionCase> cases = chosen_cases(options);
  if (options.list) {
    list_cases(options, cases);
    return kDone;
  }
  if (options.device.asks_for_gpu()) {
    bench_on_gpu(options, cases, line);
    return kDone;
  }
  if (options.python_peers) throw UsageError("--python-peers needs --device cuda");
  use_device(options.device);
  warn_when_busy();
  BenchmarkRecord record{
      .machine = measured_machine(), .command = line.text(), .pass = settings.pass};
  settings.product_rate = record.machine.product_rate;
  std::printf("%s\n%s; a peer's column says how many times our time it takes\n",
              machine_text(record.machine).c_str(),
              options.forward ? "forward" : "forward + backward");
  const nlohmann::json rows = measure_rows(cases, options, settings);
  if (options.variants) measure_variant_rows(record, settings);
  if (!options.json.empty())
    write_file_atomically(options.json, to_json(record, rows).dump(2) + "\n");
  return kDone;
}

constexpr Command kSubjects[] = {
    {"attention", run_bench_attention,
     "fmm_attention beside softmax, a torch composite and a dense near field"},
    {"fast-weight", run_bench_fast_weight, "fast_weight_attention beside torch loops over chunks"},
    {"generation", run_bench_generation, "tokens a second of a language model on its own"},
    {"scaling", run_bench_scaling, "time and memory against length: softmax, linear, FMM"},
};
constexpr CommandTable kBench = {"Times our operators against their peers.", kSubjects,
                                 "fmmformer bench attention --quick"};

}  // namespace

int run_bench(const CommandLine& line) { return dispatch(kBench, line); }

}  // namespace fmmformer::cli
