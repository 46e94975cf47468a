// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/command.h"

namespace fmmformer::cli {

/// `fmmformer bench fast-weight`.
int run_bench_fast_weight(const CommandLine& line);

}  // namespace fmmformer::cli
