// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "bench/attention_benchmark.h"

namespace fmmformer::cli {

/// The composite under torch.compile exists in Python only. Runs bench/compiled_composite.py as a
/// child, which times it beside our operator in its own process, and returns one PeerResult
/// ("compiled") per case, in their order. `python` empty: .venv/bin/python beside the program or
/// under the current folder. Throws UsageError when Python or the script is not there,
/// std::runtime_error when the child fails.
std::vector<bench::PeerResult> run_compiled_peer(const std::vector<bench::AttentionCase>& cases,
                                                 const bench::BenchmarkOptions& options,
                                                 const std::string& python);

}  // namespace fmmformer::cli
