// SPDX-License-Identifier: Apache-2.0
#include "report/gpu_data.h"

#include <nlohmann/json.hpp>

namespace fmmformer::report {
namespace {

using nlohmann::json;

json timing_json(const GpuTiming& timing) {
  json peers = json::array();
  for (const GpuPeer& peer : timing.peers) {
    peers.push_back({{"name", peer.name}, {"seconds", peer.seconds}, {"why_not", peer.why_not}});
  }
  return {{"name", timing.name},
          {"shape", timing.shape},
          {"dtype", timing.dtype},
          {"graph", timing.graph},
          {"eager", timing.eager},
          {"forward", timing.forward},
          {"floor", timing.floor},
          {"limit", timing.limit},
          {"bytes", timing.peak_bytes},
          {"limit_bytes", timing.limit_bytes},
          {"peers", peers},
          {"failure", timing.failure}};
}

}  // namespace

json gpu_json(const GpuRecord& record) {
  json timings = json::array();
  for (const GpuTiming& timing : record.timings) timings.push_back(timing_json(timing));
  json bars = json::array();
  for (const GpuBar& bar : record.bars) {
    bars.push_back(
        {{"what", bar.what}, {"measured", bar.measured}, {"wanted", bar.wanted}, {"met", bar.met}});
  }
  json checks = json::array();
  for (const GpuCheck& check : record.checks) {
    checks.push_back({{"name", check.name},
                      {"passed", check.passed},
                      {"failed", check.failed},
                      {"skipped", check.skipped},
                      {"note", check.note}});
  }
  return {{"copy_rate", record.copy_rate},
          {"kernel_hash", record.kernel_hash},
          {"timings", timings},
          {"bars", bars},
          {"checks", checks}};
}

}  // namespace fmmformer::report
