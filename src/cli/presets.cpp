// SPDX-License-Identifier: Apache-2.0
#include "cli/presets.h"

#include <algorithm>
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

std::vector<std::string> presets_with(const std::string& filter) {
  const std::vector<std::string> all = preset_names();
  std::vector<std::string> chosen;
  for (const std::string& name : all) {
    if (name.find(filter) != std::string::npos) chosen.push_back(name);
  }
  if (!chosen.empty()) return chosen;
  std::vector<std::string> near = all;  // and their words: a filter is seldom a whole name
  for (const std::string& name : all) {
    for (size_t begin = 0; begin < name.size();) {
      const size_t end = std::min(name.find_first_of("/_", begin), name.size());
      near.push_back(name.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  throw UsageError("no preset has '" + filter + "' in its name" + did_you_mean(filter, near) +
                   " (`fmmformer presets` lists all)");
}

fs::path find_config(const std::string& path_or_preset) {
  if (fs::is_regular_file(path_or_preset)) return path_or_preset;
  // Before a folder of that name is taken for a mistake: runs are often called like their presets.
  for (const fs::path& folder : configs_folders()) {
    const fs::path preset = folder / (path_or_preset + ".toml");
    if (fs::is_regular_file(preset)) return preset;
  }
  if (path_or_preset.ends_with(".toml")) {
    throw UsageError("'" + path_or_preset +
                     "': no such file; `fmmformer presets` lists what there is");
  }
  if (fs::is_directory(path_or_preset)) {
    const fs::path config = fs::path(path_or_preset) / "config.toml";
    throw UsageError("'" + path_or_preset + "' is a folder" +
                     (fs::exists(config) ? "; `fmmformer train " + path_or_preset +
                                               " --resume` goes on with its run, and " +
                                               config.string() + " is its config"
                                         : " without a run; give a TOML file or a preset's name "
                                           "(`fmmformer presets` lists them)"));
  }
  throw UsageError("'" + path_or_preset + "' is neither a file nor a preset" +
                   did_you_mean(path_or_preset, preset_names()) +
                   " (`fmmformer presets` lists them)");
}

}  // namespace fmmformer::cli
