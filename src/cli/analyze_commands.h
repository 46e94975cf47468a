// SPDX-License-Identifier: Apache-2.0
// The commands of `fmmformer analyze`, one file each; analyze_command.cpp holds their table.
#pragma once

#include "cli/command.h"

namespace fmmformer::cli {

int run_analyze_rank(const CommandLine& line);
int run_analyze_bands(const CommandLine& line);
int run_analyze_maps(const CommandLine& line);
int run_analyze_curves(const CommandLine& line);

}  // namespace fmmformer::cli
