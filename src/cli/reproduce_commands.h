// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/command.h"

namespace fmmformer::cli {

int run_reproduce_lra(const CommandLine& line);
int run_reproduce_wikitext2(const CommandLine& line);
int run_reproduce_wikitext103(const CommandLine& line);

}  // namespace fmmformer::cli
