// SPDX-License-Identifier: Apache-2.0
// The program as a function: what main() does with its arguments.
#pragma once

#include "cli/command.h"

namespace fmmformer::cli {

/// Runs the command that the arguments name and returns the exit code. Turns what was thrown into
/// one line on stderr: no stack trace for a mistake of the user.
int run_program(const CommandLine& line);

}  // namespace fmmformer::cli
