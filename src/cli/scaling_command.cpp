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
  for (const ScalingMethod& method : scaling_methods()) {
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
  const train::RunIdentity identity = run_identity(c10::Device(c10::kCPU), request.command);
  return {{"format", "fmmformer-record"},
          {"version", 1},
          {"kind", "scaling"},
          {"name", "one attention layer, forward + backward: causal, 8 heads of 32, fp32, batch 1"},
          {"created", identity.created},
          {"commit", identity.commit},
          {"command", request.command},
          {"machine", identity.machine},
          {"versions", identity.versions},
          {"series", series}};
}

int run_bench_scaling(const CommandLine& line) {
  std::string lengths = "512..16384", json;
  ScalingRequest request{.command = line.text()};
  DeviceOptions device;
  CLI::App app(
      "Time and memory of one attention layer against length: softmax, linear, FMM. Forward and "
      "backward, causal,\n8 heads of 32, fp32, one sample.");
  app.add_option("--lengths", lengths, "lengths; a range doubles (default 512..16384)")
      ->type_name("512..65536");
  app.add_option("--longest-run", request.plan.longest_run,
                 "do not begin a run that would take longer than this many seconds (default 20)")
      ->type_name("SECONDS");
  app.add_option("--json", json, "write the record, which `fmmformer report` draws")
      ->type_name("FILE");
  add_device_options(app, device);
  app.footer("Example:\n  fmmformer bench scaling --lengths 512..65536 --json scaling.json");
  if (!read_options(app, line)) return kDone;
  use_cpu(device);
  check_output_file("--json", json);
  request.plan.lengths = parse_lengths(lengths);
  const Json record = measure_scaling_record(request);
  if (!json.empty()) write_file_atomically(json, record.dump(2) + "\n");
  return kDone;
}

}  // namespace fmmformer::cli
