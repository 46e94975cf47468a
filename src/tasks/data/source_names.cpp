// SPDX-License-Identifier: Apache-2.0
#include "tasks/data/source_names.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <utility>

#include "tasks/data/data_error.h"

namespace fmmformer::tasks {

namespace fs = std::filesystem;

namespace {

std::set<std::string> words_of(const std::string& name) {
  std::set<std::string> words;
  std::string word;
  for (const char c : name + ".") {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else {
      words.insert(std::exchange(word, ""));
    }
  }
  return words;
}

}  // namespace

std::string name_without_packing(const fs::path& path) {
  const bool packed = path.extension() == ".xz" || path.extension() == ".gz";
  return (packed ? path.stem() : path.filename()).string();
}

std::optional<Split> split_in_name(const std::string& name) {
  const std::set<std::string> words = words_of(name);
  const auto has = [&](std::initializer_list<const char*> any) {
    return std::ranges::any_of(any, [&](const char* word) { return words.contains(word); });
  };
  if (has({"test"})) return Split::kTest;
  if (has({"valid", "val", "eval", "dev"})) return Split::kValid;
  if (has({"train", "batch"})) return Split::kTrain;  // data_batch_1.bin
  return std::nullopt;
}

void refuse_twins(const std::vector<fs::path>& files) {
  std::map<std::string, fs::path> seen;
  for (const fs::path& file : files) {
    const auto [other, fresh] = seen.emplace(name_without_packing(file), file);
    if (fresh) continue;
    throw DataError("'" + other->second.string() + "' and '" + file.string() +
                    "' are the same file twice, packed and not; remove one, or name the files with "
                    "--train, --valid and --test");
  }
}

}  // namespace fmmformer::tasks
