// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/data_commands.h"
#include "cli/data_corpus.h"

namespace fmmformer::cli {
namespace {

using Json = nlohmann::ordered_json;

/// Examples of a split, or why there are none: nothing here is an error of this command.
Json state_of(const tasks::DataSet& data, const std::filesystem::path& folder, tasks::Split split) {
  std::error_code ignored;
  if (!std::filesystem::exists(tasks::cache_path(folder, split), ignored)) return nullptr;
  try {
    return tasks::DataCache(folder, data.task, split).examples();
  } catch (const tasks::DataError& error) {
    return error.what();
  }
}

Json description_of(const tasks::DataSet& data, const std::filesystem::path& root) {
  const std::filesystem::path folder = root / name_of(data);
  Json splits;
  for (const tasks::Split split : tasks::kSplits) {
    splits[std::string(enum_name(split))] = state_of(data, folder, split);
  }
  return {{"task", name_of(data)},   {"about", data.about},       {"classes", data.labels.size()},
          {"sources", data.sources}, {"folder", folder.string()}, {"examples", splits}};
}

std::string shown(const Json& state) {
  if (state.is_null()) return "-";
  return state.is_string() ? "unusable, " + state.get<std::string>()
                           : std::to_string(state.get<int64_t>());
}

/// `counts` is the key of what is counted: examples or tokens.
void print(const Json& data, const std::string& size, const char* counts) {
  const auto text = [&](const char* key) { return data.at(key).get<std::string>(); };
  std::printf("%-11s %s (%s)\n", text("task").c_str(), text("about").c_str(), size.c_str());
  std::printf("  sources   %s\n  here      %s:", text("sources").c_str(), text("folder").c_str());
  for (const auto& [split, state] : data.at(counts).items()) {
    std::printf("  %s %s", split.c_str(), shown(state).c_str());
  }
  std::printf("\n\n");
}

void print(const Json& data) {
  if (data.contains("classes")) {
    print(data, shown(data.at("classes")) + " classes", "examples");
  } else {
    print(data, "vocabulary: " + shown(data.at("vocabulary")), "tokens");
  }
}

}  // namespace

int run_data_list(const CommandLine& line) {
  std::string root = "data";
  bool as_json = false;
  CLI::App app(
      "Lists the tasks that learn from data: what they are, which examples are here, and "
      "from which files they can be imported (plain, .xz or .gz).");
  app.add_option("--root", root, "folder with a folder for each task (default: data)")
      ->type_name("FOLDER");
  app.add_flag("--json", as_json, "as JSON");
  app.footer("Example:\n  fmmformer data list");
  if (!read_options(app, line)) return kDone;
  Json all = Json::array();
  for (const tasks::DataSet* data : tasks::data_sets()) all.push_back(description_of(*data, root));
  for (const Corpus& corpus : corpora()) all.push_back(corpus_description(corpus, root));
  if (as_json) {
    std::printf("%s\n", all.dump(2).c_str());
  } else {
    for (const Json& data : all) print(data);
  }
  return kDone;
}

}  // namespace fmmformer::cli
