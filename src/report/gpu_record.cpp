// SPDX-License-Identifier: Apache-2.0
#include "report/gpu_record.h"

#include "report/json_node.h"

namespace fmmformer::report {
namespace {

double seconds_of(const JsonNode& milliseconds) { return milliseconds.number(kUnknown) * 1e-3; }

GpuTiming read_timing(const JsonNode& node) {
  const JsonNode& ours = node["ours"];
  GpuTiming timing{.name = node["case"].text(),
                   .shape = node["shape_text"].text(),
                   .dtype = node["dtype"].text(),
                   .graph = seconds_of(ours["graph"]["median_ms"]),
                   .eager = seconds_of(ours["eager"]["median_ms"]),
                   .forward = seconds_of(node["forward"]["median_ms"]),
                   .floor = seconds_of(node["floor_ms"]),
                   .limit = seconds_of(node["limit_ms"]),
                   .peak_bytes = ours["peak_bytes"].number(kUnknown),
                   .limit_bytes = node["limit_bytes"].number(kUnknown),
                   .failure = node["failure"].text()};
  for (const auto& [name, peer] : node["peers"].members()) {
    timing.peers.push_back({.name = name,
                            .seconds = seconds_of(peer["graph"]["median_ms"]),
                            .why_not = peer["not_run"].text()});
  }
  return timing;
}

}  // namespace

GpuRecord read_gpu_record(const JsonNode& root) {
  GpuRecord record{.copy_rate = root["copy_bytes_per_second"].number(kUnknown),
                   .kernel_hash = root["kernel_hash"].text()};
  for (const JsonNode& node : root["timings"].elements())
    record.timings.push_back(read_timing(node));
  for (const JsonNode& node : root["bars"].elements()) {
    record.bars.push_back({.what = node["what"].text(),
                           .measured = node["measured"].text(),
                           .wanted = node["wanted"].text(),
                           .met = node["met"].flag(false)});
  }
  for (const JsonNode& node : root["checks"].elements()) {
    record.checks.push_back({.name = node["name"].text(),
                             .passed = node["passed"].number(kUnknown),
                             .failed = node["failed"].number(kUnknown),
                             .skipped = node["skipped"].number(kUnknown),
                             .note = node["note"].text()});
  }
  return record;
}

}  // namespace fmmformer::report
