// SPDX-License-Identifier: Apache-2.0
#include "cli/gpu_peers.h"

#include <nlohmann/json.hpp>

#include "cli/bench_json.h"
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

}  // namespace

std::map<std::string, std::vector<bench::GpuPeerResult>> run_gpu_peers(
    const std::vector<bench::AttentionCase>& cases, c10::ScalarType dtype,
    const bench::GpuBenchmarkOptions& options, const std::string& python,
    const std::string& subject) {
  json asked = json::array();
  for (const bench::AttentionCase& one : cases) asked.push_back(python_case_json(one, dtype));
  const json answer =
      run_python({.path = "bench/gpu_peers.py", .option = "--python-peers", .python = python},
                 {{"device", options.device.str()},
                  {"seconds", options.plan.seconds},
                  {"operator", subject},
                  {"cases", asked}});
  std::map<std::string, std::vector<bench::GpuPeerResult>> found;
  for (const bench::AttentionCase& one : cases) {
    const json& peers = answer.at(one.name + " " + std::string(bench::dtype_name(dtype)));
    for (const auto& [name, result] : peers.items())
      found[one.name].push_back(peer_from(name, result));
  }
  return found;
}

}  // namespace fmmformer::cli
