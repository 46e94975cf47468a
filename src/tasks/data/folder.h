// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace fmmformer::tasks {

/// The files in a folder whose names end so, by the number that a name begins with, then by name:
/// 2_7.txt comes before 10_3.txt, on every machine. Throws DataError when the folder cannot be
/// read.
std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder,
                                            std::string_view ending);

}  // namespace fmmformer::tasks
