// SPDX-License-Identifier: Apache-2.0
// What the names of files say about them.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tasks/split.h"

namespace fmmformer::tasks {

/// "basic_val.tsv" of folder/basic_val.tsv.xz
std::string name_without_packing(const std::filesystem::path& path);

/// The split that one of a name's words stands for: "new_aan_pairs.eval.tsv" is of the valid split.
std::optional<Split> split_in_name(const std::string& name);

/// Throws DataError when two of the files differ only in how they are packed.
void refuse_twins(const std::vector<std::filesystem::path>& files);

}  // namespace fmmformer::tasks
