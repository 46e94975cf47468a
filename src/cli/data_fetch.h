// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/command.h"

namespace fmmformer::cli {

/// `fmmformer data fetch`: brings public data sets to this machine, ready for `data import`.
int run_data_fetch(const CommandLine& line);

}  // namespace fmmformer::cli
