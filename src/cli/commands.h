// SPDX-License-Identifier: Apache-2.0
// The commands of the program, one file each; main.cpp holds their table.
#pragma once

#include "cli/command.h"

namespace fmmformer::cli {

int run_verify(const CommandLine& line);
int run_bench(const CommandLine& line);

}  // namespace fmmformer::cli
