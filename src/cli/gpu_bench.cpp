// SPDX-License-Identifier: Apache-2.0
#include "cli/gpu_bench.h"

#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>

#include "bench/gpu.h"
#include "bench/gpu_timing.h"
#include "bench/gpu_variants.h"
#include "cli/gpu_bench_table.h"
#include "cli/gpu_peers.h"
#include "cli/run_identity.h"
#include "fmmformer/core/atomic_file.h"

namespace fmmformer::cli {
namespace {

void print_line(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

using PeersOfCases = std::map<std::string, std::vector<bench::GpuPeerResult>>;

PeersOfCases python_peers(const GpuBenchRequest& request) {
  const auto half = std::ranges::find_if(request.dtypes, [](c10::ScalarType dtype) {
    return dtype == c10::kBFloat16 || dtype == c10::kHalf;
  });
  if (!request.python_peers || half == request.dtypes.end()) return {};
  return run_gpu_peers(request.cases, *half, request.options, request.python);
}

std::vector<std::string> columns_of(const GpuBenchRequest& request, const PeersOfCases& python) {
  std::vector<std::string> columns;
  for (const bench::Peer* peer : request.options.peers) columns.emplace_back(peer->name);
  if (python.empty()) return columns;
  for (const bench::GpuPeerResult& peer : python.begin()->second) columns.push_back(peer.name);
  return columns;
}

void measure_rows(GpuBenchmarkRecord& record, const GpuBenchRequest& request) {
  const PeersOfCases python = python_peers(request);
  const std::vector<std::string> columns = columns_of(request, python);
  print_line(gpu_heading(columns));
  for (const c10::ScalarType dtype : request.dtypes) {
    for (const bench::AttentionCase& one : request.cases) {
      bench::GpuRow row = bench::measure_gpu_case(one, dtype, request.options);
      if (dtype != c10::kFloat && python.contains(one.name))
        std::ranges::copy(python.at(one.name), std::back_inserter(row.peers));
      print_line(gpu_row(row, columns));
      record.rows.push_back(std::move(row));
    }
  }
}

void hold_against_bars(GpuBenchmarkRecord& record, const GpuBenchRequest& request) {
  record.bars = bench::bars_of(record.rows);
  for (const c10::ScalarType dtype : request.dtypes)
    record.bars.push_back(step_bar(bench::measure_gpu_step(dtype, request.options), dtype));
  for (const bench::Bar& bar : record.bars) print_line(bar_line(bar));
}

void measure_variants(GpuBenchmarkRecord& record, const GpuBenchRequest& request) {
  for (const c10::ScalarType dtype : request.dtypes) {
    for (const bench::GpuVariant& variant : bench::gpu_variants()) {
      record.bars.push_back(bench::variant_bar(
          variant, dtype, bench::measure_gpu_variant(variant, dtype, request.options)));
      print_line(bar_line(record.bars.back()));
    }
  }
}

void print_sum(const GpuBenchmarkRecord& record) {
  const auto met = std::ranges::count_if(record.bars, &bench::Bar::met);
  print_line(std::to_string(met) + " of " + std::to_string(record.bars.size()) + " bars met");
}

}  // namespace

void run_gpu_bench(const GpuBenchRequest& request) {
  GpuBenchRequest measured = request;
  const c10::Device device = request.options.device;
  const c10::DeviceGuard guard(device);
  GpuBenchmarkRecord record{.gpu = bench::gpu_name(device),
                            .copy_rate = bench::measure_copy_rate(device)};
  measured.options.copy_rate = record.copy_rate;
  std::printf(
      "%s, copy %.2f TB/s; forward + backward in ms: graph = replayed CUDA graph, eager = through "
      "autograd,\nfloor = every tensor once through memory at the copy's rate; a peer's column "
      "says "
      "how many times our graph its own takes\n",
      record.gpu.c_str(), record.copy_rate / 1e12);
  if (!measured.cases.empty()) {
    measure_rows(record, measured);
    hold_against_bars(record, measured);
  }
  if (measured.variants) measure_variants(record, measured);
  print_sum(record);
  if (request.json.empty()) return;
  const train::RunIdentity identity = run_identity(device, request.command);
  write_file_atomically(request.json, to_json(record, identity).dump(2) + "\n");
}

}  // namespace fmmformer::cli
