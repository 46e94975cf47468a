// SPDX-License-Identifier: Apache-2.0
#include "cli/gpu_peers.h"

#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>

#include "cli/bench_json.h"
#include "cli/gpu_bench_table.h"
#include "cli/python_child.h"

namespace fmmformer::cli {
namespace {

using nlohmann::json;

bench::GpuPeerResult peer_from(const std::string& name, const json& answer) {
  if (answer.contains("not_run")) return {.name = name, .why_not = answer["not_run"]};
  return {.name = name,
          .measured = bench::GpuMeasurement{.graph = timing_from_json(answer["graph_ms"]),
                                            .eager = timing_from_json(answer["eager_ms"]),
                                            .peak_bytes = answer["peak_bytes"]}};
}

PythonScript script_for(const PythonPeers& peers) {
  return {.path = "bench/gpu_peers.py", .option = "--python-peers", .python = peers.python};
}

std::string key_of(const bench::GpuRow& row) {
  return row.attention_case.name + " " + std::string(bench::dtype_name(row.dtype));
}

/// The peers of each row, in order.
std::vector<std::vector<bench::GpuPeerResult>> measured_peers(
    const PythonPeers& peers, const std::vector<bench::GpuRow*>& rows,
    const bench::GpuBenchmarkOptions& options) {
  json asked = json::array();
  for (const bench::GpuRow* row : rows)
    asked.push_back(python_case_json(row->attention_case, row->dtype));
  std::vector<std::vector<bench::GpuPeerResult>> found(rows.size());
  try {
    const json answer = run_python(script_for(peers), {{"device", options.device.str()},
                                                       {"seconds", options.plan.seconds},
                                                       {"operator", peers.subject},
                                                       {"cases", asked}});
    for (size_t i = 0; i < rows.size(); ++i) {
      for (const auto& [name, result] : answer.at(key_of(*rows[i])).items())
        found[i].push_back(peer_from(name, result));
    }
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "peers in Python: %s\n", failure.what());
    found.assign(rows.size(),
                 {{.name = "Python", .why_not = "the process of peers in Python failed"}});
  }
  return found;
}

}  // namespace

void PythonPeers::check() const { check_python(script_for(*this)); }

void PythonPeers::add_to(std::vector<bench::GpuRow>& rows,
                         const bench::GpuBenchmarkOptions& options) const {
  std::vector<bench::GpuRow*> halves;
  for (bench::GpuRow& row : rows) {
    if (row.dtype == c10::kBFloat16 || row.dtype == c10::kHalf) halves.push_back(&row);
  }
  if (halves.empty()) return;
  const auto found = measured_peers(*this, halves, options);
  std::vector<std::string> columns;
  for (const bench::GpuPeerResult& peer : found.front()) columns.push_back(peer.name);
  std::printf("beside peers in Python:\n%s\n", gpu_heading(columns).c_str());
  for (size_t i = 0; i < halves.size(); ++i) {
    std::ranges::copy(found[i], std::back_inserter(halves[i]->peers));
    std::printf("%s\n", gpu_row(*halves[i], columns).c_str());
  }
  std::fflush(stdout);
}

}  // namespace fmmformer::cli
