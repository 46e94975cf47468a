// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "report/record.h"

namespace fmmformer::cli {

/// The paper's Table 1 with what runs of it reached: one line a task, row and recipe, seeds
/// together, then the averages of rows that have all five tasks. Markdown, aligned for the eye.
/// Runs of other experiments are left out; "" when there are none of these.
std::string lra_table(const std::vector<report::Record>& records);

}  // namespace fmmformer::cli
