// SPDX-License-Identifier: Apache-2.0
// `bench attention --device cuda`.
#pragma once

#include <string>
#include <vector>

#include "bench/gpu_benchmark.h"

namespace fmmformer::cli {

struct GpuBenchRequest {
  bench::GpuBenchmarkOptions options;
  std::vector<bench::AttentionCase> cases;
  std::vector<c10::ScalarType> dtypes;  // each case in each of them
  bool variants = false;                // and every timed case with one thing changed
  bool python_peers = false;            // also those that exist in Python only
  std::string python;                   // the interpreter for them; "": .venv/bin/python
  std::string json;                     // a file for the record; "": none
  std::string command;                  // for the record
};

/// Measures, prints and stores.
void run_gpu_bench(const GpuBenchRequest& request);

}  // namespace fmmformer::cli
