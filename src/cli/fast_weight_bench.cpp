// SPDX-License-Identifier: Apache-2.0
#include "cli/fast_weight_bench.h"

#include <c10/core/DeviceGuard.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "bench/fast_weight_benchmark.h"
#include "bench/gpu.h"
#include "bench/gpu_timing.h"
#include "cli/bench_rows.h"
#include "cli/bench_table.h"
#include "cli/device_options.h"
#include "cli/gpu_bench_table.h"
#include "cli/gpu_peers.h"
#include "cli/run_identity.h"
#include "fmmformer/core/atomic_file.h"

namespace fmmformer::cli {
namespace {

using namespace fmmformer::bench;

struct FastWeightBenchOptions {
  std::string dtype;
  DeviceOptions device;
  bool forward = false, quick = false, python_peers = false;
  std::string python;
  std::string json;
};

void add_options(CLI::App& app, FastWeightBenchOptions& options) {
  app.add_option("--dtype", options.dtype,
                 "fp32 (default) or fp64: torch solves in no other type; on a GPU bf16 and fp32 "
                 "unless told")
      ->type_name("TYPE");
  add_device_options(app, options.device);
  app.add_flag("--forward", options.forward, "forward alone, without gradients");
  app.add_flag("--python-peers", options.python_peers,
               "on a GPU: also fla's delta rule, where installed, in a Python child");
  app.add_option("--python", options.python,
                 "the Python for --python-peers (default: .venv/bin/python)")
      ->type_name("PATH");
  app.add_flag("--quick", options.quick, "short cases and short timings");
  app.add_option("--json", options.json, "write the record to this file")->type_name("FILE");
  app.footer("Columns as in `bench attention`.\n\nExample:\n  fmmformer bench fast-weight --quick");
}

void bench_on_cpu(const FastWeightBenchOptions& given, const CommandLine& line) {
  if (given.python_peers) throw UsageError("--python-peers needs --device cuda");
  BenchmarkOptions options;
  if (!given.dtype.empty()) {
    options.dtype = dtype_from_name(given.dtype);
    if (*options.dtype != c10::kFloat && *options.dtype != c10::kDouble)
      throw UsageError("--dtype is " + given.dtype + "; allowed: fp32, fp64");
  }
  use_device(given.device);
  if (given.forward) options.pass = bench::Pass::kForward;
  if (given.quick) options.plan = {.warm_up_seconds = 0.05, .seconds = 0.4, .minimum_repeats = 3};

  BenchmarkRecord record{
      .machine = measured_machine(), .command = line.text(), .pass = options.pass};
  options.product_rate = record.machine.product_rate;
  std::printf("%s\n%s; a peer's column says how many times our time it takes\n%s\n",
              machine_text(record.machine).c_str(),
              given.forward ? "forward" : "forward + backward",
              table_heading(fast_weight_peers()).c_str());
  constexpr int64_t kLongestQuick = 2048;
  nlohmann::json rows = nlohmann::json::array();
  for (const FastWeightCase& one : fast_weight_cases_with_tag(CaseTag::kTiming)) {
    if (given.quick && one.attention.length > kLongestQuick) continue;
    rows.push_back(measured_row(fast_weight_peers(), [&] { return measure_case(one, options); }));
  }
  if (!given.json.empty()) write_file_atomically(given.json, to_json(record, rows).dump(2) + "\n");
}

void bench_on_gpu(const FastWeightBenchOptions& given, const CommandLine& line) {
  if (given.forward) throw UsageError("--forward is for the CPU; leave it or --device out");
  const PythonPeers python{.python = given.python, .subject = "fast_weight_attention"};
  if (given.python_peers) {
    if (given.dtype == "fp32") throw UsageError("--python-peers: fla's delta rule takes no fp32");
    python.check();
  }
  GpuBenchmarkOptions options;
  options.device = use_device(given.device);
  if (given.quick) options.plan.seconds = 0.03;
  std::vector<c10::ScalarType> dtypes = {c10::kBFloat16, c10::kFloat};
  if (!given.dtype.empty()) dtypes = {dtype_from_name(given.dtype)};
  const c10::DeviceGuard guard(options.device);
  GpuBenchmarkRecord record{.subject = "fast_weight_attention",
                            .gpu = gpu_name(options.device),
                            .copy_rate = measure_copy_rate(options.device)};
  options.copy_rate = record.copy_rate;
  const std::vector<FastWeightCase> cases = fast_weight_cases_with_tag(CaseTag::kGpu);
  std::printf("%s, copy %.2f TB/s; forward + backward in ms, columns as in `bench attention`\n%s\n",
              record.gpu.c_str(), record.copy_rate / 1e12, gpu_heading({}).c_str());
  for (const c10::ScalarType dtype : dtypes) {
    for (const FastWeightCase& one : cases) {
      GpuRow row = measure_gpu_case(one, dtype, options);
      std::printf("%s\n", gpu_row(row, {}).c_str());
      std::fflush(stdout);
      record.rows.push_back(std::move(row));
    }
  }
  if (given.python_peers) python.add_to(record.rows, options);
  if (given.json.empty()) return;
  const train::RunIdentity identity = run_identity(options.device, line.text());
  write_file_atomically(given.json, to_json(record, identity).dump(2) + "\n");
}

}  // namespace

int run_bench_fast_weight(const CommandLine& line) {
  FastWeightBenchOptions options;
  CLI::App app(
      "Times fast_weight_attention, forward and backward, in one process with its peers: on the "
      "CPU "
      "a torch loop over\nchunks of 32, 64 and 128 tokens.");
  add_options(app, options);
  if (!read_options(app, line)) return kDone;
  check_output_file("--json", options.json);
  options.device.asks_for_gpu() ? bench_on_gpu(options, line) : bench_on_cpu(options, line);
  return kDone;
}

}  // namespace fmmformer::cli
