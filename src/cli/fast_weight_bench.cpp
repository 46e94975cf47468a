// SPDX-License-Identifier: Apache-2.0
#include "cli/fast_weight_bench.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "bench/fast_weight_benchmark.h"
#include "cli/bench_table.h"
#include "cli/device_options.h"
#include "fmmformer/core/atomic_file.h"

namespace fmmformer::cli {

using namespace fmmformer::bench;

int run_bench_fast_weight(const CommandLine& line) {
  std::string dtype, json;
  bool forward = false, quick = false;
  CLI::App app(
      "Times fast_weight_attention on the CPU, forward and backward, beside a torch loop over "
      "chunks "
      "of 32, 64 and 128\ntokens, in one process.");
  app.add_option("--dtype", dtype, "fp32 (default) or fp64: torch solves in no other type")
      ->type_name("TYPE");
  app.add_flag("--forward", forward, "forward alone, without gradients");
  app.add_flag("--quick", quick, "short cases and short timings");
  app.add_option("--json", json, "write the record to this file")->type_name("FILE");
  app.footer("Columns as in `bench attention`.\n\nExample:\n  fmmformer bench fast-weight --quick");
  if (!read_options(app, line)) return kDone;
  check_output_file("--json", json);
  BenchmarkOptions options;
  if (!dtype.empty()) {
    options.dtype = dtype_from_name(dtype);
    if (*options.dtype != c10::kFloat && *options.dtype != c10::kDouble)
      throw UsageError("--dtype is " + dtype + "; allowed: fp32, fp64");
  }
  if (forward) options.pass = Pass::kForward;
  if (quick) options.plan = {.warm_up_seconds = 0.05, .seconds = 0.4, .minimum_repeats = 3};

  BenchmarkRecord record{
      .machine = describe_machine(), .command = line.text(), .pass = options.pass};
  options.product_rate = record.machine.product_rate;
  std::printf("%s\n%s; a peer's column says how many times our time it takes\n%s\n",
              machine_text(record.machine).c_str(), forward ? "forward" : "forward + backward",
              table_heading(fast_weight_peers()).c_str());
  constexpr int64_t kLongestQuick = 2048;
  for (const FastWeightCase& one : fast_weight_cases_with_tag(CaseTag::kTiming)) {
    if (quick && one.attention.length > kLongestQuick) continue;
    record.rows.push_back(measure_case(one, options));
    std::printf("%s\n", table_row(record.rows.back(), fast_weight_peers()).c_str());
    std::fflush(stdout);
  }
  if (!json.empty()) write_file_atomically(json, to_json(record).dump(2) + "\n");
  return kDone;
}

}  // namespace fmmformer::cli
