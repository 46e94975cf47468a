// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tasks/data/data_task.h"

namespace fmmformer::tasks {

extern const DataSet kListopsData;

/// ListOps: an expression such as [MAX 2 9 [MIN 4 7 ] 0 ], a token a word, and its value, 0 .. 9.
///
/// Source: LRA's table with the columns Source and Target; round brackets, which the official files
/// have around everything, say nothing and are left out.
class ListopsTask : public DataTask {
 public:
  ListopsTask(const ListopsConfig& config, uint64_t seed);
};

/// The tokens of an expression. Throws DataError (without a place) for a word that is none, and
/// for operators and closing brackets that do not belong together.
std::string listops_tokens(std::string_view expression);

}  // namespace fmmformer::tasks
