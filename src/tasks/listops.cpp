// SPDX-License-Identifier: Apache-2.0
#include "tasks/listops.h"

#include <algorithm>

#include "tasks/data/columns.h"
#include "tasks/listops_tokens.h"

namespace fmmformer::tasks {
namespace {

constexpr std::array<std::string_view, 10> kListOpsLabels = {"0", "1", "2", "3", "4",
                                                             "5", "6", "7", "8", "9"};

char token_of(std::string_view word) {
  const auto* found = std::find(kListOpsWords.begin() + 1, kListOpsWords.end(), word);
  if (found == kListOpsWords.end()) {
    std::string shown(word.substr(0, 20));
    std::ranges::replace_if(
        shown, [](char c) { return c < ' ' || c > '~'; }, '?');
    throw DataError("'" + shown +
                    "' is no word of ListOps; allowed: 0..9, [MIN, [MAX, [MED, [SM, ] and round "
                    "brackets; mend the line, or get the file again");
  }
  return static_cast<char>(found - kListOpsWords.begin());
}

void read_listops(const Source& source, CacheWriter& out) {
  TableReader table(source.path, "Source TAB Target");
  for (bool first = true; table.next(); first = false) {
    const auto columns = table.columns(2);
    if (first && columns[0] == "Source") continue;
    const uint16_t label = table.label(columns[1], kListOpsLabels.size());
    try {
      out.add(listops_tokens(columns[0]), label);
    } catch (const DataError& error) {
      table.fail(error.what());
    }
  }
}

}  // namespace

constinit const DataSet kListopsData = {.task = TaskName::kListops,
                                        .about = "value of a nested list of operations",
                                        .sources = "LRA's basic_{train,val,test}.tsv",
                                        .labels = kListOpsLabels,
                                        .words = kListOpsWords,
                                        .read = read_listops};

std::string listops_tokens(std::string_view expression) {
  constexpr std::string_view kBetween = " ()";
  std::string tokens;
  int64_t depth = 0;
  for (size_t begin = 0;
       (begin = expression.find_first_not_of(kBetween, begin)) != expression.npos;) {
    const size_t end = std::min(expression.find_first_of(kBetween, begin), expression.size());
    const char token = token_of(expression.substr(begin, end - begin));
    depth += token == kListOpsClose ? -1 : token >= kListOpsMin ? 1 : 0;
    if (depth < 0) break;
    tokens += token;
    begin = end;
  }
  if (depth != 0 || tokens.empty()) {
    throw DataError(std::string("the expression ") +
                    (tokens.empty() ? "is empty" : "does not close what it opens") +
                    "; mend the line, or get the file again");
  }
  return tokens;
}

ListopsTask::ListopsTask(const ListopsConfig& config, uint64_t seed)
    : DataTask(kListopsData, {.length = config.length, .bytes = config.length, .vocabulary = 32},
               config.data, seed) {}

}  // namespace fmmformer::tasks
