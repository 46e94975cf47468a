// SPDX-License-Identifier: Apache-2.0
// The language models in the paper: its tables of perplexities on WikiText-103, and how their
// experiments are called here.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "report/record.h"

namespace fmmformer::report {

/// A line of the paper's tables; perplexities of the valid and the test split.
struct PaperPerplexity {
  std::string_view row;    // as configs are named: wikitext103/ROW, wikitext2/ROW
  std::string_view title;  // as a person would say it
  double valid = 0, test = 0;
};

/// Both tables in their order: linear far fields, then fast weights.
inline constexpr std::array<PaperPerplexity, 11> kPaperPerplexities = {
    {{"softmax", "softmax", 33.15, 34.29},
     {"linear", "linear", 37.27, 38.40},
     {"band5", "band 5", 43.77, 44.76},
     {"band20", "band 20", 38.18, 39.19},
     {"fmm1_band5", "1 kernel + band 5", 36.27, 37.29},
     {"fmm1_band20", "1 kernel + band 20", 35.41, 36.43},
     {"fmm2_band20", "2 kernels + band 20", 35.10, 36.11},
     {"fast_weights", "fast weights", 35.75, 36.63},
     {"fast_weights_linear", "fast weights + linear", 34.78, 35.95},
     {"fmm1_fast_weights_band20", "fast weights + band 20", 34.54, 35.47},
     {"fmm2_fast_weights_band20", "fast weights + linear + band 20", 34.16, 34.71}}};

struct WikitextName {
  std::string corpus;  // "wikitext103" or "wikitext2"
  std::string row;     // one of the table's
};

/// None for the name of anything else.
std::optional<WikitextName> wikitext_name(std::string_view name);

/// Which line of the tables a run belongs to. A preset that was trained on another text, which
/// keeps its name, belongs to none: the number of tokens in the vocabulary tells.
std::optional<WikitextName> wikitext_run(const Record& record);

}  // namespace fmmformer::report
