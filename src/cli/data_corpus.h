// SPDX-License-Identifier: Apache-2.0
// What the commands of `fmmformer data` do with texts to predict: tokens rather than examples.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tasks/corpus/import.h"

namespace fmmformer::cli {

/// A text that the task wikitext can read: a name, which is also that of its folder.
struct Corpus {
  std::string_view name;
  std::string_view about;
  std::string_view sources;  // what can be imported
};

std::span<const Corpus> corpora();

/// None when the name is that of no corpus.
const Corpus* find_corpus(std::string_view name);

/// Where its files are: the folder that the user gave, or, when that is empty, data/NAME.
std::filesystem::path corpus_folder(const Corpus& corpus, const std::string& given);

/// Imports, and prints what came of it.
void run_corpus_import(const tasks::ImportSources& sources, const tasks::CorpusOptions& options,
                       const std::filesystem::path& folder);

/// For `data list`: tokens of the splits, or why there are none.
nlohmann::ordered_json corpus_description(const Corpus& corpus, const std::filesystem::path& root);

/// Which part of which text `data show` is to print.
struct CorpusPart {
  std::filesystem::path folder;
  tasks::Split split = tasks::Split::kTrain;
  int64_t index = 0;  // of a window of kShownTokens
};
inline constexpr int64_t kShownTokens = 256;  // a window of the paper's models

/// Throws UsageError for a part behind the end.
void show_corpus(const CorpusPart& part);

}  // namespace fmmformer::cli
