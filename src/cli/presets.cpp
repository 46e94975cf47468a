// SPDX-License-Identifier: Apache-2.0
#include "cli/presets.h"

#include <algorithm>

#include "cli/command.h"

namespace fmmformer::cli {

namespace fs = std::filesystem;

fs::path configs_folder() {
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const fs::path& folder : {fs::path("configs"), program.parent_path() / "configs"}) {
    if (fs::is_directory(folder)) return folder;
  }
  throw UsageError("no folder configs/ here or beside the program; run from the project's folder");
}

std::vector<std::string> preset_names() {
  const fs::path folder = configs_folder();
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".toml") continue;
    names.push_back(entry.path().lexically_relative(folder).replace_extension().string());
  }
  std::ranges::sort(names);
  return names;
}

fs::path find_config(const std::string& path_or_preset) {
  if (fs::is_regular_file(path_or_preset)) return path_or_preset;
  if (path_or_preset.ends_with(".toml")) {
    throw UsageError("'" + path_or_preset +
                     "': no such file; `fmmformer presets` lists what there "
                     "is");
  }
  const fs::path preset = configs_folder() / (path_or_preset + ".toml");
  if (fs::is_regular_file(preset)) return preset;
  throw UsageError("'" + path_or_preset + "' is neither a file nor a preset" +
                   did_you_mean(path_or_preset, preset_names()) +
                   " (`fmmformer presets` lists them)");
}

}  // namespace fmmformer::cli
