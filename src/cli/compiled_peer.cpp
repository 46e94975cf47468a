// SPDX-License-Identifier: Apache-2.0
#include "cli/compiled_peer.h"

#include <ATen/Parallel.h>

#include <nlohmann/json.hpp>

#include "cli/bench_json.h"
#include "cli/python_child.h"

namespace fmmformer::cli {
namespace {

using nlohmann::json;

constexpr int64_t kLongest = 16384;  // beyond it the compiled composite takes minutes

json request_for(const std::vector<bench::AttentionCase>& cases,
                 const bench::BenchmarkOptions& options) {
  json rows = json::array();
  for (const bench::AttentionCase& c : cases) {
    if (c.length > kLongest) continue;
    rows.push_back(python_case_json(c, options.dtype.value_or(c.dtypes.front())));
  }
  return {{"cases", rows},
          {"threads", at::get_num_threads()},
          {"forward_only", options.pass == bench::Pass::kForward},
          {"seconds", options.plan.seconds}};
}

}  // namespace

std::vector<bench::PeerResult> run_compiled_peer(const std::vector<bench::AttentionCase>& cases,
                                                 const bench::BenchmarkOptions& options,
                                                 const std::string& python) {
  const json answer =
      run_python({.path = "bench/compiled_composite.py", .option = "--compiled", .python = python},
                 request_for(cases, options));
  std::vector<bench::PeerResult> results;
  for (const bench::AttentionCase& c : cases) {
    results.push_back({.name = "compiled", .why_not = "not compiled beyond length 16384"});
    if (!answer.contains(c.name)) continue;
    results.back().why_not.clear();
    results.back().timing = timing_from_json(answer[c.name]["compiled_ms"]);
    // Against our operator in the child, through Python: the two were timed side by side there.
    results.back().ratio =
        results.back().timing->median / timing_from_json(answer[c.name]["ours_ms"]).median;
  }
  return results;
}

}  // namespace fmmformer::cli
