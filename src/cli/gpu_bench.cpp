// SPDX-License-Identifier: Apache-2.0
#include "cli/gpu_bench.h"

#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <cstdio>
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

void measure_rows(GpuBenchmarkRecord& record, const GpuBenchRequest& request) {
  std::vector<std::string> columns;
  for (const bench::Peer* peer : request.options.peers) columns.emplace_back(peer->name);
  print_line(
      "in ms: graph = replayed CUDA graph, eager = through autograd, floor = every tensor once "
      "through memory at the\ncopy's rate; a peer's column says how many times our graph its own "
      "takes");
  print_line(gpu_heading(columns));
  for (const c10::ScalarType dtype : request.dtypes) {
    for (const bench::AttentionCase& one : request.cases) {
      record.rows.push_back(bench::measure_gpu_case(one, dtype, request.options));
      print_line(gpu_row(record.rows.back(), columns));
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
  print_line("replayed CUDA graphs, with one thing changed and without, in turns");
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
  const PythonPeers python{.python = request.python};
  if (request.python_peers) python.check();
  const c10::Device device = request.options.device;
  const c10::DeviceGuard guard(device);
  GpuBenchmarkRecord record{.gpu = bench::gpu_name(device),
                            .copy_rate = bench::measure_copy_rate(device)};
  measured.options.copy_rate = record.copy_rate;
  std::printf("%s, copy %.2f TB/s; forward + backward\n", record.gpu.c_str(),
              record.copy_rate / 1e12);
  if (!measured.cases.empty()) {
    measure_rows(record, measured);
    hold_against_bars(record, measured);
  }
  if (measured.variants) measure_variants(record, measured);
  print_sum(record);
  // Last: whatever becomes of them, ours are measured.
  if (request.python_peers) python.add_to(record.rows, measured.options);
  if (request.json.empty()) return;
  const train::RunIdentity identity = run_identity(device, request.command);
  write_file_atomically(request.json, to_json(record, identity).dump(2) + "\n");
}

}  // namespace fmmformer::cli
