// SPDX-License-Identifier: Apache-2.0
// The tasks of Long Range Arena at the size of a toy: short, easy and made up on the spot, so that
// a CPU sees a model learn each of them in seconds. They show that everything works, and nothing
// about which attention is better.
//
//   listops     expressions of 5 to 30 tokens, from the generator
//   text        reviews of words that are for, against or neither
//   retrieval   two texts of the same subject, or of two
//   image       noise around a tone of grey, which is the class
//   pathfinder  two dots, and a dashed path that joins them or ends half way
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tasks/config.h"

namespace fmmformer::cli {

/// Writes train, valid and test into the folder, unless they are there.
void make_tiny_data(tasks::TaskName task, const std::filesystem::path& folder);

/// What turns a config of the table into its small variant, over data in the folder.
std::vector<std::string> tiny_overrides(tasks::TaskName task, const std::filesystem::path& folder);

}  // namespace fmmformer::cli
