// SPDX-License-Identifier: Apache-2.0
#include "cli/data_corpus.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/command.h"
#include "tasks/corpus/token_file.h"
#include "tasks/corpus/words.h"

namespace fmmformer::cli {
namespace {

using Json = nlohmann::ordered_json;
using tasks::TokenFile;
using tasks::Vocabulary;

constexpr Corpus kCorpora[] = {
    {"wikitext-2", "the next word of Wikipedia, 2 million words",
     "wiki.{train,valid,test}.tokens of WikiText-2"},
    {"wikitext-103", "the next word of Wikipedia, 103 million words",
     "wiki.{train,valid,test}.tokens of WikiText-103"},
    {"wikitext", "the next word, or byte, of a text of your own",
     "UTF-8 texts with train, valid and test in their names (.txt, .tokens, .raw), or --train FILE "
     "alone; --level byte reads any file"},
};

Json tokens_of(const std::filesystem::path& folder, tasks::Split split, const Vocabulary& words) {
  std::error_code ignored;
  if (!std::filesystem::exists(tasks::token_file_path(folder, split), ignored)) return nullptr;
  try {
    return TokenFile(folder, split, words).tokens();
  } catch (const tasks::DataError& error) {
    return error.what();
  }
}

// Words with blanks between them, a line for each line of the text; or the bytes themselves.
std::string readable(const Vocabulary& words, std::span<const int64_t> tokens) {
  std::string text;
  if (words.level() == tasks::TextLevel::kByte) {
    for (const int64_t token : tokens) {
      const std::string byte(1, static_cast<char>(token));
      text += token == '\n' || token == '\t' ? byte : tasks::readable_word(byte);
    }
    return text;
  }
  for (const int64_t token : tokens) {
    if (!text.empty() && !text.ends_with('\n')) text += ' ';
    text += words.text(token);
    if (token == tasks::kEndOfLineToken) text += '\n';
  }
  return text;
}

}  // namespace

std::span<const Corpus> corpora() { return kCorpora; }

const Corpus* find_corpus(std::string_view name) {
  const auto* found = std::ranges::find(kCorpora, name, &Corpus::name);
  return found == std::end(kCorpora) ? nullptr : found;
}

std::filesystem::path corpus_folder(const Corpus& corpus, const std::string& given) {
  return given.empty() ? "data/" + std::string(corpus.name) : given;
}

void run_corpus_import(const tasks::ImportSources& sources, const tasks::CorpusOptions& options,
                       const std::filesystem::path& folder) {
  const tasks::ImportedCorpus imported = tasks::import_corpus(sources, options, folder);
  std::printf("%s: %lld %ss\n", tasks::vocabulary_path(folder).c_str(),
              static_cast<long long>(imported.vocabulary),
              std::string(enum_name(imported.level)).c_str());
  for (const tasks::ImportedText& text : imported.texts) {
    std::printf("%s: %lld tokens", tasks::token_file_path(folder, text.split).c_str(),
                static_cast<long long>(text.tokens));
    if (text.unknown > 0) {
      std::printf(", %lld of them not in the vocabulary and read as <unk>",
                  static_cast<long long>(text.unknown));
    }
    std::printf("\n");
  }
}

Json corpus_description(const Corpus& corpus, const std::filesystem::path& root) {
  const std::filesystem::path folder = root / corpus.name;
  Json vocabulary = nullptr, splits;
  for (const tasks::Split split : tasks::kSplits) splits[std::string(enum_name(split))] = nullptr;
  std::error_code ignored;
  if (std::filesystem::exists(tasks::vocabulary_path(folder), ignored)) {
    try {
      const Vocabulary words = Vocabulary::read(folder);
      vocabulary = words.size();
      for (const tasks::Split split : tasks::kSplits) {
        splits[std::string(enum_name(split))] = tokens_of(folder, split, words);
      }
    } catch (const tasks::DataError& error) {
      vocabulary = error.what();
    }
  }
  return {{"task", corpus.name},       {"about", corpus.about},     {"vocabulary", vocabulary},
          {"sources", corpus.sources}, {"folder", folder.string()}, {"tokens", splits}};
}

void show_corpus(const CorpusPart& part) {
  const Vocabulary words = Vocabulary::read(part.folder);
  const TokenFile file(part.folder, part.split, words);
  const int64_t windows = (file.tokens() + kShownTokens - 1) / kShownTokens;
  if (part.index >= windows) {
    throw UsageError("--index " + std::to_string(part.index) + ": there are windows of " +
                     std::to_string(kShownTokens) + " tokens 0.." + std::to_string(windows - 1));
  }
  const int64_t begin = part.index * kShownTokens;
  std::vector<int64_t> tokens(static_cast<size_t>(std::min(kShownTokens, file.tokens() - begin)));
  file.read(begin, tokens);
  std::printf("%s, tokens %lld..%lld of %lld, vocabulary of %lld %ss:\n%s\n", file.path().c_str(),
              static_cast<long long>(begin), static_cast<long long>(begin + std::ssize(tokens) - 1),
              static_cast<long long>(file.tokens()), static_cast<long long>(words.size()),
              std::string(enum_name(words.level())).c_str(), readable(words, tokens).c_str());
}

}  // namespace fmmformer::cli
