// SPDX-License-Identifier: Apache-2.0
// The members of a record of kind "gpu": the operator's timings on a GPU, and what was checked
// there.
//
//    "copy_bytes_per_second": 4.1e12, "kernel_hash": "sha256 of the sources that decide the
//    kernels", "timings": [{"case": "gpu_copy", "shape_text": "64x512x8x32 causal 3+30", "dtype":
//    "bf16",
//                 "ours": {"graph": {"median_ms": 0.1}, "eager": {..}, "peak_bytes": 123},
//                 "forward": {"median_ms": 0.03}, "floor_ms": 0.04, "limit_ms": 0.15,
//                 "limit_bytes": 456, "peers": {"sdpa": {"graph": {..}, ..} or {"not_run":
//                 "why"}}},
//                {"case": .., "failure": "out of memory"}, ...],
//    "bars": [{"what": "...", "measured": "4.02 x", "wanted": "4 x +- 10 %", "met": true}, ...],
//    "checks": [{"name": "tests", "passed": 10, "failed": 0, "skipped": 2, "note": ""}, ...]
#pragma once

#include <string>
#include <vector>

#include "report/unknown.h"

namespace fmmformer::report {

class JsonNode;

/// A peer's replayed graph, or why there is none.
struct GpuPeer {
  std::string name;
  double seconds = kUnknown;
  std::string why_not;
};

struct GpuTiming {
  std::string name;
  std::string shape;
  std::string dtype;
  double graph = kUnknown;  // seconds, like all below
  double eager = kUnknown;
  double forward = kUnknown;
  double floor = kUnknown;
  double limit = kUnknown;
  double peak_bytes = kUnknown;
  double limit_bytes = kUnknown;
  std::vector<GpuPeer> peers;
  std::string failure;
};

struct GpuBar {
  std::string what;
  std::string measured;
  std::string wanted;
  bool met = false;
};

struct GpuCheck {
  std::string name;
  double passed = kUnknown;
  double failed = kUnknown;
  double skipped = kUnknown;
  std::string note;
};

struct GpuRecord {
  double copy_rate = kUnknown;  // bytes a second
  std::string kernel_hash;
  std::vector<GpuTiming> timings;
  std::vector<GpuBar> bars;
  std::vector<GpuCheck> checks;
};

/// From the root of a record.
GpuRecord read_gpu_record(const JsonNode& root);

}  // namespace fmmformer::report
