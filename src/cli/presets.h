// SPDX-License-Identifier: Apache-2.0
// The experiments that ship with the project: TOML files under configs/.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace fmmformer::cli {

/// "copy/softmax_128", .. sorted: those of configs/ in the current folder, beside the program's
/// build folder and where `make install` puts them. Throws UsageError when there are none.
std::vector<std::string> preset_names();

/// Those with `filter` in their name. Throws UsageError, naming the nearest preset, when there are
/// none.
std::vector<std::string> presets_with(const std::string& filter);

/// A path to a TOML file as it is, or the file of a preset's name. Throws UsageError that names the
/// nearest preset.
std::filesystem::path find_config(const std::string& path_or_preset);

}  // namespace fmmformer::cli
