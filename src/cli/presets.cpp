// SPDX-License-Identifier: Apache-2.0
#include "cli/presets.h"

#include <set>

#include "cli/command.h"

namespace fmmformer::cli {

namespace fs = std::filesystem;

namespace {

std::vector<fs::path> configs_folders() {
  std::error_code ignored;
  const fs::path project = fs::read_symlink("/proc/self/exe", ignored).parent_path().parent_path();
  std::vector<fs::path> folders;
  for (const fs::path& folder :
       {fs::path("configs"), project / "configs", project / "share/fmmformer/configs"}) {
    if (fs::is_directory(folder)) folders.push_back(folder);
  }
  return folders;
}

}  // namespace

std::vector<std::string> preset_names() {
  std::set<std::string> names;
  for (const fs::path& folder : configs_folders()) {
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (entry.path().extension() != ".toml") continue;
      names.insert(entry.path().lexically_relative(folder).replace_extension().string());
    }
  }
  if (names.empty()) {
    throw UsageError("no configs/ here or beside the program; run from the project's folder");
  }
  return {names.begin(), names.end()};
}

fs::path find_config(const std::string& path_or_preset) {
  if (fs::is_regular_file(path_or_preset)) return path_or_preset;
  if (path_or_preset.ends_with(".toml")) {
    throw UsageError("'" + path_or_preset +
                     "': no such file; `fmmformer presets` lists what there "
                     "is");
  }
  if (fs::is_directory(path_or_preset)) {
    throw UsageError("'" + path_or_preset + "' is a folder; to go on with a run add --resume");
  }
  for (const fs::path& folder : configs_folders()) {
    const fs::path preset = folder / (path_or_preset + ".toml");
    if (fs::is_regular_file(preset)) return preset;
  }
  throw UsageError("'" + path_or_preset + "' is neither a file nor a preset" +
                   did_you_mean(path_or_preset, preset_names()) +
                   " (`fmmformer presets` lists them)");
}

}  // namespace fmmformer::cli
