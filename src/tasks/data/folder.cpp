// SPDX-License-Identifier: Apache-2.0
#include "tasks/data/folder.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <string>
#include <system_error>
#include <utility>

#include "tasks/data/data_error.h"

namespace fmmformer::tasks {
namespace {

uint64_t number_at_begin(const std::string& name) {
  uint64_t number = std::numeric_limits<uint64_t>::max();  // names without one come last
  std::from_chars(name.data(), name.data() + name.size(), number);
  return number;
}

}  // namespace

std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder,
                                            std::string_view ending) {
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  if (error) {
    throw DataError("cannot read the folder '" + folder.string() + "': " + error.message() +
                    "; check the path");
  }
  std::vector<std::pair<uint64_t, std::string>> names;
  for (const auto& entry : entries) {
    std::string name = entry.path().filename().string();
    if (!name.ends_with(ending) || !entry.is_regular_file(error)) continue;
    const uint64_t number = number_at_begin(name);
    names.emplace_back(number, std::move(name));
  }
  std::ranges::sort(names);
  std::vector<std::filesystem::path> files;
  files.reserve(names.size());
  for (const auto& [number, name] : names) files.push_back(folder / name);
  return files;
}

}  // namespace fmmformer::tasks
