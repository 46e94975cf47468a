// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/command.h"

namespace fmmformer::cli {

/// `fmmformer bench generation`: how fast a language model goes on with a text.
int run_bench_generation(const CommandLine& line);

}  // namespace fmmformer::cli
