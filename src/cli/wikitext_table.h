// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "report/record.h"

namespace fmmformer::cli {

/// The paper's Tables 2 and 3 with what runs of their models reached on a data set ("wikitext2" or
/// "wikitext103"): one line a row, seeds together. A row's place is its rank by test perplexity
/// among the rows that are there, ours beside the paper's: numbers of WikiText-2 cannot be compared
/// with the paper's, which are of WikiText-103, an order can. Markdown, aligned for the eye. Runs
/// of other experiments are left out; "" when there are none of these.
std::string wikitext_table(const std::vector<report::Record>& records, const std::string& data);

}  // namespace fmmformer::cli
