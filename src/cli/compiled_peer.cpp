// SPDX-License-Identifier: Apache-2.0
#include "cli/compiled_peer.h"

#include <ATen/Parallel.h>

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "cli/command.h"

namespace fmmformer::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kLongest = 16384;  // beyond it the compiled composite takes minutes

/// `relative` beside or above the program (build/fmmformer lies one folder below the project), or
/// from here.
std::string find_file(const std::string& relative, const std::string& way_out) {
  const fs::path program = fs::read_symlink("/proc/self/exe").parent_path();
  for (const fs::path& folder : {program.parent_path(), program, fs::current_path()}) {
    if (fs::exists(folder / relative)) return (folder / relative).string();
  }
  throw UsageError("--compiled needs " + relative +
                   ", which is neither above the program nor under this folder; " + way_out);
}

std::string shell_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char letter : text) {
    if (letter == '\'') {
      quoted += "'\\''";
    } else {
      quoted += letter;
    }
  }
  return quoted + "'";
}

json request_for(const std::vector<bench::AttentionCase>& cases,
                 const bench::BenchmarkOptions& options) {
  json rows = json::array();
  for (const bench::AttentionCase& c : cases) {
    if (c.length > kLongest) continue;
    json maps = json::array();
    for (const FeatureMap map : c.feature_maps) maps.push_back(enum_name(map));
    rows.push_back({{"name", c.name},
                    {"shape", {c.batch, c.length, c.heads, c.head_dim}},
                    {"bandwidth", c.bandwidth},
                    {"causal", c.causal},
                    {"feature_maps", maps},
                    {"dtype", bench::dtype_name(options.dtype.value_or(c.dtypes.front()))}});
  }
  return {{"cases", rows},
          {"threads", at::get_num_threads()},
          {"forward_only", options.pass == bench::Pass::kForward},
          {"seconds", options.plan.seconds}};
}

json run_child(const std::string& command) {
  const auto close = [](FILE* pipe) { return pclose(pipe); };
  std::unique_ptr<FILE, decltype(close)> pipe(popen(command.c_str(), "r"), close);
  if (!pipe) throw std::runtime_error("cannot start a child process for the compiled composite");
  std::string output;
  char buffer[4096];
  while (const size_t count = fread(buffer, 1, sizeof buffer, pipe.get()))
    output.append(buffer, count);
  if (const int status = pclose(pipe.release()); status != 0) {
    throw std::runtime_error("the compiled composite failed (its messages are above); ran: " +
                             command);
  }
  return json::parse(output);
}

bench::Timing timing_from(const json& milliseconds) {
  std::vector<double> seconds;
  for (const json& one : milliseconds) seconds.push_back(one.get<double>() / 1e3);
  return bench::summarise(std::move(seconds));
}

}  // namespace

std::vector<bench::PeerResult> run_compiled_peer(const std::vector<bench::AttentionCase>& cases,
                                                 const bench::BenchmarkOptions& options,
                                                 const std::string& python) {
  const std::string interpreter =
      python.empty()
          ? find_file(".venv/bin/python", "run `make` to set it up, or name one with --python")
          : python;
  const std::string script =
      find_file("bench/compiled_composite.py", "run from the project's folder");
  const json answer = run_child(shell_quoted(interpreter) + " " + shell_quoted(script) + " " +
                                shell_quoted(request_for(cases, options).dump()));
  std::vector<bench::PeerResult> results;
  for (const bench::AttentionCase& c : cases) {
    results.push_back({.name = "compiled", .why_not = "not compiled beyond length 16384"});
    if (!answer.contains(c.name)) continue;
    results.back().why_not.clear();
    results.back().timing = timing_from(answer[c.name]["compiled_ms"]);
    // Against our operator in the child, through Python: the two were timed side by side there.
    results.back().ratio =
        results.back().timing->median / timing_from(answer[c.name]["ours_ms"]).median;
  }
  return results;
}

}  // namespace fmmformer::cli
