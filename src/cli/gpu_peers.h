// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "bench/gpu_benchmark.h"

namespace fmmformer::cli {

/// What bench/gpu_peers.py measured in a process of its own: the peers of each case, by its name.
/// In half precision alone, for which those packages are made. `subject`: the operator whose peers
/// are wanted, fmm_attention or fast_weight_attention. `python` empty: .venv/bin/python. Throws as
/// run_python() does.
std::map<std::string, std::vector<bench::GpuPeerResult>> run_gpu_peers(
    const std::vector<bench::AttentionCase>& cases, c10::ScalarType dtype,
    const bench::GpuBenchmarkOptions& options, const std::string& python,
    const std::string& subject = "fmm_attention");

}  // namespace fmmformer::cli
