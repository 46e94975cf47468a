// SPDX-License-Identifier: Apache-2.0
// `bench scaling`: the paper's figure of time and memory against length.
#include "cli/scaling_command.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "bench/machine.h"
#include "bench/scaling.h"
#include "cli/device_options.h"
#include "cli/lengths.h"
#include "cli/live_line.h"
#include "cli/run_identity.h"
#include "fmmformer/core/atomic_file.h"

namespace fmmformer::cli {
namespace {

using namespace fmmformer::bench;
using Json = nlohmann::ordered_json;

Json point_json(const ScalingPoint& point) {
  if (!point.failure.empty()) return {{"length", point.length}, {"failure", point.failure}};
  return {{"length", point.length},
          {"seconds", point.timing.median},
          {"seconds_low", point.timing.lower},
          {"seconds_high", point.timing.upper},
          {"peak_bytes", point.peak_bytes}};
}

/// What a point of the figure is: it stands over the figure.
std::string protocol_text(const ScalingPlan& plan) {
  std::string text = "one attention layer, forward + backward, eagerly: causal, 8 heads of 32, ";
  text.append(dtype_name(plan.dtype));
  if (plan.batch_tokens == 1) return text + ", batch 1";
  return text + ", a sample of a batch of " + std::to_string(plan.batch_tokens) +
         " tokens (at least one sample); memory beyond the inputs";
}

void print_series(const std::vector<ScalingPoint>& points) {
  for (const ScalingPoint& point : points) {
    if (point.failure.empty()) {
      std::printf("  %7ld %10.2f ms +-%2.0f%% %9.1f MiB\n", point.length, 1e3 * point.timing.median,
                  100 * point.timing.spread(), static_cast<double>(point.peak_bytes) / (1 << 20));
    } else {
      std::printf("  %7ld not run: %s\n", point.length, point.failure.c_str());
    }
  }
  if (const double exponent = growth_exponent(points); exponent != 0)
    std::printf("  time grows as length^%.2f\n", exponent);
  std::fflush(stdout);
}

}  // namespace

Json measure_scaling_record(const ScalingRequest& request) {
  const LiveLine live;
  Json series = Json::array();
  std::vector<ScalingMethod> methods = scaling_methods();
  if (!request.plan.device.is_cpu()) methods.push_back(softmax_with_matrix());
  for (const ScalingMethod& method : methods) {
    const std::vector<ScalingPoint> points = measure_scaling(
        method, request.plan,
        [&](int64_t length) { live.show(method.name + ", length " + std::to_string(length)); });
    live.clear();
    std::printf("%s\n", method.name.c_str());
    print_series(points);
    Json list = Json::array();
    for (const ScalingPoint& point : points) list.push_back(point_json(point));
    series.push_back({{"name", method.name}, {"attention", method.attention}, {"points", list}});
  }
  const train::RunIdentity identity = run_identity(request.plan.device, request.command);
  return {{"format", "fmmformer-record"},
          {"version", 1},
          {"kind", "scaling"},
          {"name", protocol_text(request.plan)},
          {"created", identity.created},
          {"commit", identity.commit},
          {"command", request.command},
          {"machine", identity.machine},
          {"versions", identity.versions},
          {"series", series}};
}

int run_bench_scaling(const CommandLine& line) {
  std::string lengths, json, dtype;
  double longest_run = 0;
  DeviceOptions device;
  CLI::App app(
      "Time and memory of one attention layer against length: softmax, linear, FMM. Forward and "
      "backward, causal,\n8 heads of 32, fp32, per sample: on the CPU of one alone, on a GPU of a "
      "batch of 65536 tokens.");
  app.add_option("--lengths", lengths,
                 "lengths; a range doubles (default 512..16384, on a GPU 512..1048576)")
      ->type_name("512..65536");
  app.add_option("--longest-run", longest_run,
                 "do not begin a run that would take longer than this many seconds (default 20, on "
                 "a GPU 1)")
      ->type_name("SECONDS");
  app.add_option("--dtype", dtype, "fp32 (default), bf16, fp16 or fp64")->type_name("TYPE");
  app.add_option("--json", json, "write the record, which `fmmformer report` draws")
      ->type_name("FILE");
  add_device_options(app, device);
  app.footer(
      "Examples:\n  fmmformer bench scaling --lengths 512..65536 --json scaling.json\n"
      "  fmmformer bench scaling --device cuda --json scaling.json");
  if (!read_options(app, line)) return kDone;
  const c10::Device chosen = use_device(device);
  check_output_file("--json", json);
  ScalingRequest request{.plan = chosen.is_cpu() ? ScalingPlan{} : gpu_scaling_plan(chosen),
                         .command = line.text()};
  if (lengths.empty()) lengths = chosen.is_cpu() ? "512..16384" : "512..1048576";
  request.plan.lengths = parse_lengths(lengths);
  if (longest_run > 0) request.plan.longest_run = longest_run;
  if (!dtype.empty()) request.plan.dtype = dtype_from_name(dtype);
  const Json record = measure_scaling_record(request);
  if (!json.empty()) write_file_atomically(json, record.dump(2) + "\n");
  return kDone;
}

}  // namespace fmmformer::cli
