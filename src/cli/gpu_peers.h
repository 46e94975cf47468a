// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "bench/gpu_benchmark.h"

namespace fmmformer::cli {

/// What bench/gpu_peers.py times in a Python process of its own.
struct PythonPeers {
  std::string python;                     // the interpreter; "": .venv/bin/python
  std::string subject = "fmm_attention";  // or fast_weight_attention: whose peers are wanted

  /// Throws UsageError where Python or the script is not there.
  void check() const;

  /// Gives the rows in half precision, for which those packages are made, the peers of their cases,
  /// and prints them beside these. A process that fails is a finding about the peers: they are then
  /// named as not run.
  void add_to(std::vector<bench::GpuRow>& rows, const bench::GpuBenchmarkOptions& options) const;
};

}  // namespace fmmformer::cli
